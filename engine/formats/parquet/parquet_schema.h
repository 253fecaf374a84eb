// The schema of a parquet file as fields and leaves. Private to engine/formats.
//
// Bounds   48 levels.
// Errors   BadBytes for an invalid schema; ConfigError, with the file and the column, for unsupported types.
// Source   github.com/apache/parquet-format, LogicalTypes.md.
#pragma once

#include <string>
#include <vector>

#include "engine/formats/parquet/parquet_file.h"
#include "engine/formats/parquet/parquet_metadata.h"

namespace loom::io {

struct ParquetLeaf {
  std::string name;
  ParquetType type = ParquetType::kBoolean;
  ParquetField::Kind kind = ParquetField::Kind::kNull;
  std::uint8_t most_definition = 0;
  std::uint8_t most_repetition = 0;
};

struct ParquetSchema {
  std::vector<ParquetField> fields;
  std::vector<ParquetLeaf> leaves;
};

ParquetSchema make_schema(const std::vector<SchemaElement>& elements, const std::string& file);

}  // namespace loom::io
