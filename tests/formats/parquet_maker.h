// Parquet files of one column, made by hand, whose every number can lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::io::testing {

// Thrift's compact protocol, fields in rising order.
class ThriftText {
 public:
  ThriftText& i32(int field, std::int64_t value) { return number(field, 5, value); }
  ThriftText& i64(int field, std::int64_t value) { return number(field, 6, value); }
  ThriftText& boolean(int field, bool value) { return head(field, value ? 1 : 2); }
  ThriftText& text(int field, std::string_view value) {
    head(field, 8);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  ThriftText& record(int field, const ThriftText& value) {
    head(field, 12);
    bytes_ += value.done();
    return *this;
  }
  ThriftText& list(int field, const std::vector<ThriftText>& items) {
    head(field, 9);
    bytes_ += static_cast<char>(items.size() << 4 | 12);
    for (const ThriftText& item : items) bytes_ += item.done();
    return *this;
  }
  std::string done() const { return bytes_ + '\0'; }

 private:
  ThriftText& head(int field, int type) {
    bytes_ += static_cast<char>((field - last_) << 4 | type);
    last_ = field;
    return *this;
  }
  ThriftText& number(int field, int type, std::int64_t value) {
    head(field, type);
    varint(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
    return *this;
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
  int last_ = 0;
};

inline std::string little32(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// A page, its head made to fit its bytes where nothing else is said.
struct PageText {
  int type = 0;  // of the format: 0 data, 2 dictionary, 3 data v2
  std::int64_t values = 1;
  int encoding = 0;
  std::string bytes = {};
  std::optional<std::int64_t> uncompressed = {};
  std::optional<std::int64_t> compressed = {};
  std::optional<std::int64_t> crc = {};
  std::int64_t definition_bytes = 0;  // of v2
  std::int64_t repetition_bytes = 0;
  bool is_compressed = true;

  std::string text() const {
    const auto size = static_cast<std::int64_t>(bytes.size());
    ThriftText head;
    head.i32(1, type).i32(2, uncompressed.value_or(size)).i32(3, compressed.value_or(size));
    if (crc) head.i32(4, *crc);
    if (type == 0) head.record(5, ThriftText().i32(1, values).i32(2, encoding).i32(3, 3).i32(4, 3));
    if (type == 2) head.record(7, ThriftText().i32(1, values).i32(2, encoding));
    if (type == 3) {
      head.record(8, ThriftText()
                         .i32(1, values)
                         .i32(2, 0)
                         .i32(3, values)
                         .i32(4, encoding)
                         .i32(5, definition_bytes)
                         .i32(6, repetition_bytes)
                         .boolean(7, is_compressed));
    }
    return head.done() + bytes;
  }
};

struct ColumnText {
  int type = 6;        // BYTE_ARRAY
  int converted = 0;   // UTF8; -1: none
  int repetition = 0;  // required
  int codec = 0;
  std::int64_t rows = 1;
  std::optional<std::int64_t> values = {};  // as many as rows
  std::optional<std::int64_t> bytes = {};
  std::vector<PageText> pages = {};

  ThriftText element(std::string_view name) const {
    ThriftText text;
    text.i32(1, type).i32(3, repetition).text(4, name);
    if (converted >= 0) text.i32(6, converted);
    return text;
  }
};

inline std::string parquet_file(std::string_view body, const ThriftText& metadata) {
  const std::string footer = metadata.done();
  return "PAR1" + std::string(body) + footer + little32(footer.size()) + "PAR1";
}

inline std::string parquet_text(const ColumnText& column) {
  std::string body;
  for (const PageText& page : column.pages) body += page.text();
  ThriftText chunk;
  chunk.i32(1, column.type)
      .i32(4, column.codec)
      .i64(5, column.values.value_or(column.rows))
      .i64(7, column.bytes.value_or(static_cast<std::int64_t>(body.size())))
      .i64(9, 4);
  const ThriftText group = ThriftText().list(1, {ThriftText().record(3, chunk)}).i64(3, column.rows);
  return parquet_file(body, ThriftText()
                                .i32(1, 1)
                                .list(2, {ThriftText().text(4, "schema").i32(5, 1), column.element("c")})
                                .i64(3, column.rows)
                                .list(4, {group}));
}

}  // namespace loom::io::testing
