#include "engine/formats/parquet/parquet_metadata.h"

#include <array>

#include "engine/formats/parquet/thrift.h"

namespace loom::io {
namespace {

using Type = ThriftReader::Type;

template <std::size_t N>
std::string name_in(const std::array<std::string_view, N>& names, std::int64_t number, std::string_view what) {
  const bool known = number >= 0 && number < std::int64_t{N} && !names[static_cast<std::size_t>(number)].empty();
  return known ? std::string(names[static_cast<std::size_t>(number)]) : fmt::format("{} {}", what, number);
}

// A value of an enum of the format that begins with 0.
template <class Enum>
Enum enum_of(std::int32_t value, std::int32_t last, std::string_view what) {
  if (value < 0 || value > last) bad_bytes("{} {}, which the format has not", what, value);
  return static_cast<Enum>(value);
}

ParquetType type_of(std::int32_t value) { return enum_of<ParquetType>(value, 7, "type"); }

Encoding encoding_of(std::int32_t value) { return enum_of<Encoding>(value, 255, "encoding"); }

void read_logical_type(ThriftReader& thrift, SchemaElement& element) {
  constexpr int kInteger = 10;
  thrift.fields([&](int kind, Type type) {
    element.logical = kind;
    if (kind != kInteger || type != Type::kStruct) return false;
    thrift.fields([&](int field, Type of) {
      if (field != 2) return false;
      element.logical_signed = thrift.boolean(of);
      return true;
    });
    return true;
  });
}

SchemaElement read_element(ThriftReader& thrift) {
  SchemaElement element;
  thrift.fields([&](int field, Type type) {
    switch (field) {
      case 1:
        element.type = type_of(thrift.i32(type));
        return true;
      case 3:
        element.repetition = enum_of<Repetition>(thrift.i32(type), 2, "repetition");
        return true;
      case 4:
        element.name = thrift.text(type);
        return true;
      case 5:
        element.children = thrift.i32(type);
        return true;
      case 6:
        element.converted = thrift.i32(type);
        return true;
      case 10:
        ThriftReader::expect(type, Type::kStruct);
        read_logical_type(thrift, element);
        return true;
      default:
        return false;
    }
  });
  if (element.name.empty()) bad_bytes("an entry of the schema without a name");
  return element;
}

void read_column_metadata(ThriftReader& thrift, ColumnChunk& chunk) {
  chunk.described = true;
  constexpr unsigned kNeeded = 1U << 1 | 1U << 4 | 1U << 5 | 1U << 7 | 1U << 9;
  unsigned found = 0;
  thrift.fields([&](int field, Type type) {
    if (field > 0 && field < 32) found |= 1U << field;
    switch (field) {
      case 1:
        chunk.type = type_of(thrift.i32(type));
        return true;
      case 4:
        chunk.codec = thrift.i32(type);
        return true;
      case 5:
        chunk.values = thrift.i64(type);
        return true;
      case 7:
        chunk.compressed_bytes = thrift.i64(type);
        return true;
      case 9:
        chunk.data_page_at = thrift.i64(type);
        return true;
      case 11:
        chunk.dictionary_page_at = thrift.i64(type);
        return true;
      default:
        return false;
    }
  });
  if ((found & kNeeded) != kNeeded) bad_bytes("a column's metadata lacks type, codec, number of values, size or place");
}

ColumnChunk read_chunk(ThriftReader& thrift) {
  ColumnChunk chunk;
  thrift.fields([&](int field, Type type) {
    switch (field) {
      case 1:
        chunk.elsewhere = !thrift.text(type).empty();
        return true;
      case 3:
        ThriftReader::expect(type, Type::kStruct);
        read_column_metadata(thrift, chunk);
        return true;
      case 8:
      case 9:
        chunk.encrypted = true;
        return false;
      default:
        return false;
    }
  });
  if (!chunk.described && !chunk.encrypted) bad_bytes("a column without metadata");
  return chunk;
}

RowGroup read_row_group(ThriftReader& thrift) {
  RowGroup group;
  thrift.fields([&](int field, Type type) {
    switch (field) {
      case 1:
        thrift.items(type, Type::kStruct, [&] { group.columns.push_back(read_chunk(thrift)); });
        return true;
      case 3:
        group.rows = thrift.i64(type);
        return true;
      default:
        return false;
    }
  });
  if (group.columns.empty()) bad_bytes("a row group without columns");
  return group;
}

void read_data_head(ThriftReader& thrift, PageHead& head) {
  thrift.fields([&](int field, Type type) {
    switch (field) {
      case 1:
        head.values = thrift.i32(type);
        return true;
      case 2:
        head.encoding = encoding_of(thrift.i32(type));
        return true;
      case 3:
        head.definition_encoding = encoding_of(thrift.i32(type));
        return true;
      case 4:
        head.repetition_encoding = encoding_of(thrift.i32(type));
        return true;
      default:
        return false;
    }
  });
}

void read_dictionary_head(ThriftReader& thrift, PageHead& head) {
  thrift.fields([&](int field, Type type) {
    if (field == 1) {
      head.values = thrift.i32(type);
    } else if (field == 2) {
      head.encoding = encoding_of(thrift.i32(type));
    } else {
      return false;
    }
    return true;
  });
}

void read_data_v2_head(ThriftReader& thrift, PageHead& head) {
  thrift.fields([&](int field, Type type) {
    switch (field) {
      case 1:
        head.values = thrift.i32(type);
        return true;
      case 4:
        head.encoding = encoding_of(thrift.i32(type));
        return true;
      case 5:
        head.definition_bytes = thrift.i32(type);
        return true;
      case 6:
        head.repetition_bytes = thrift.i32(type);
        return true;
      case 7:
        head.is_compressed = thrift.boolean(type);
        return true;
      default:
        return false;
    }
  });
}

// The field of PageHeader that describes a page of this type.
int head_field(PageType type) {
  constexpr std::array<int, 4> kFields = {5, 6, 7, 8};
  return kFields[static_cast<std::size_t>(type)];
}

// The type comes first, as field 1; other descriptions than its own are passed over.
bool read_description(ThriftReader& thrift, PageHead& head, int field, Type type) {
  if (field != head_field(head.type) || head.type == PageType::kIndex) return false;
  ThriftReader::expect(type, Type::kStruct);
  head.described = true;
  if (head.type == PageType::kData) read_data_head(thrift, head);
  if (head.type == PageType::kDictionary) read_dictionary_head(thrift, head);
  if (head.type == PageType::kDataV2) read_data_v2_head(thrift, head);
  return true;
}

}  // namespace

FileMetadata parse_file_metadata(std::string_view bytes) {
  ThriftReader thrift(bytes);
  FileMetadata metadata;
  thrift.fields([&](int field, Type type) {
    switch (field) {
      case 2:
        thrift.items(type, Type::kStruct, [&] { metadata.schema.push_back(read_element(thrift)); });
        return true;
      case 3:
        metadata.rows = thrift.i64(type);
        return true;
      case 4:
        thrift.items(type, Type::kStruct, [&] { metadata.row_groups.push_back(read_row_group(thrift)); });
        return true;
      case 8:
        metadata.encrypted = true;
        return false;
      default:
        return false;
    }
  });
  return metadata;
}

PageHead parse_page_head(std::string_view bytes) {
  ThriftReader thrift(bytes);
  PageHead head;
  thrift.fields([&](int field, Type type) {
    switch (field) {
      case 1:
        head.type = enum_of<PageType>(thrift.i32(type), 3, "type of page");
        return true;
      case 2:
        head.uncompressed_bytes = thrift.i32(type);
        return true;
      case 3:
        head.compressed_bytes = thrift.i32(type);
        return true;
      case 4:
        head.crc = static_cast<std::uint32_t>(thrift.i32(type));
        return true;
      default:
        return read_description(thrift, head, field, type);
    }
  });
  head.head_bytes = thrift.used();
  return head;
}

std::string name_of_codec(std::int32_t codec) {
  constexpr std::array<std::string_view, 8> kNames = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO",
                                                      "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};
  return name_in(kNames, codec, "codec");
}

std::string name_of_encoding(Encoding encoding) {
  constexpr std::array<std::string_view, 10> kNames = {"PLAIN",
                                                       "",
                                                       "PLAIN_DICTIONARY",
                                                       "RLE",
                                                       "BIT_PACKED",
                                                       "DELTA_BINARY_PACKED",
                                                       "DELTA_LENGTH_BYTE_ARRAY",
                                                       "DELTA_BYTE_ARRAY",
                                                       "RLE_DICTIONARY",
                                                       "BYTE_STREAM_SPLIT"};
  return name_in(kNames, static_cast<std::int64_t>(encoding), "encoding");
}

std::string name_of_type(ParquetType type) {
  constexpr std::array<std::string_view, 8> kNames = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                                      "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
  return name_in(kNames, static_cast<std::int64_t>(type), "type");
}

}  // namespace loom::io
