// Rows of JSON, assembled from the levels and values of leaf columns. Private to engine/text.
//
// Errors   FileDamage, with file, row and column, if columns under one field differ in their lists, or a
//          text is not UTF-8.
// Source   Dremel (Melnik et al., VLDB 2010), section 4.
#pragma once

#include <string>
#include <vector>

#include "engine/formats/parquet/parquet_file.h"
#include "engine/text/records/record.h"

namespace loom::data {

struct ParquetShape {
  std::string file;
  std::vector<io::ParquetField> fields;
  std::vector<std::string> leaf_names;
};

std::vector<Record> assembled(const ParquetShape& shape, const io::ParquetRows& rows);

}  // namespace loom::data
