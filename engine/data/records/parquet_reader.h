// Parquet files as records: each row an object of its columns. Private to engine/data.
#pragma once

#include <memory>

#include "engine/data/records/record.h"

namespace loom::data {

std::unique_ptr<RecordReader> parquet_reader(const std::filesystem::path& path);

}  // namespace loom::data
