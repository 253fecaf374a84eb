// Parquet files as records: each row an object of its columns. Private to engine/text.
#pragma once

#include <memory>

#include "engine/text/records/record.h"

namespace loom::data {

std::unique_ptr<RecordReader> parquet_reader(const std::filesystem::path& path);

}  // namespace loom::data
