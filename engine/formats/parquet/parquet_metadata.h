// The metadata of a parquet file: schema, row groups, columns' chunks, heads of pages.
// Private to engine/formats.
//
// Numbers are unchecked: the user of a number compares it with the bytes present.
//
// Errors   BadBytes.
// Source   github.com/apache/parquet-format, src/main/thrift/parquet.thrift.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::io {

enum class ParquetType : std::uint8_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedLenByteArray = 7
};

enum class Repetition : std::uint8_t { kRequired = 0, kOptional = 1, kRepeated = 2 };

struct SchemaElement {
  std::string name;
  std::optional<ParquetType> type;  // of leaves
  Repetition repetition = Repetition::kRequired;
  std::int32_t children = 0;
  std::optional<std::int32_t> converted;  // ConvertedType
  int logical = 0;                        // which field of the union LogicalType; 0: none
  bool logical_signed = true;
};

struct ColumnChunk {
  bool elsewhere = false;  // in another file
  bool encrypted = false;
  bool described = false;  // has the fields below
  ParquetType type = ParquetType::kBoolean;
  std::int32_t codec = 0;
  std::int64_t values = 0;
  std::int64_t compressed_bytes = 0;
  std::int64_t data_page_at = 0;
  std::optional<std::int64_t> dictionary_page_at;
};

struct RowGroup {
  std::int64_t rows = 0;
  std::vector<ColumnChunk> columns;
};

struct FileMetadata {
  std::vector<SchemaElement> schema;
  std::int64_t rows = 0;
  std::vector<RowGroup> row_groups;
  bool encrypted = false;
};

FileMetadata parse_file_metadata(std::string_view bytes);

enum class PageType : std::uint8_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

enum class Encoding : std::uint8_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
  kByteStreamSplit = 9
};

struct PageHead {
  PageType type = PageType::kData;
  std::int32_t uncompressed_bytes = -1;
  std::int32_t compressed_bytes = -1;
  std::optional<std::uint32_t> crc;
  // For data and dictionary pages.
  bool described = false;
  std::int32_t values = -1;
  Encoding encoding = Encoding::kPlain;
  Encoding definition_encoding = Encoding::kRle;
  Encoding repetition_encoding = Encoding::kRle;
  // For data pages v2.
  std::int32_t definition_bytes = 0;
  std::int32_t repetition_bytes = 0;
  bool is_compressed = true;

  std::size_t head_bytes = 0;  // its own size
};

PageHead parse_page_head(std::string_view bytes);

// As parquet.thrift spells them; "encoding 17" for an unknown one.
std::string name_of_codec(std::int32_t codec);
std::string name_of_encoding(Encoding encoding);
std::string name_of_type(ParquetType type);

}  // namespace loom::io
