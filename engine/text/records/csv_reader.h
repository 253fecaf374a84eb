// csv files as records. Private to engine/text.
//
// Columns  named by the first row; one without a name is "Unnamed: 0" by its number, as in pandas.
// Values   an empty field is null. A column is integers (64 bits) if each of its other fields is one, numbers if
//          each is one, and texts otherwise. So the file is read twice, the first time on opening.
#pragma once

#include <memory>

#include "engine/text/records/record.h"

namespace loom::data {

std::unique_ptr<RecordReader> csv_reader(const std::filesystem::path& path);

}  // namespace loom::data
