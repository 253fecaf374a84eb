// The wire format of protobuf: the fields of one message, written and read. Private to engine/formats.
//
// Read     field by field; a nested message is read by a MessageReader of its own, as deep as the caller goes. Groups,
//          which proto3 has not, are refused.
// Errors   next(): false at the end; WireError with the reason for bytes that are not a message.
// Source   protobuf.dev, "Encoding".
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace loom::io {

enum class WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class MessageWriter {
 public:
  void add_varint(int field, std::uint64_t value) {
    tag(field, WireType::kVarint);
    varint(value);
  }
  void add_double(int field, double value) {
    tag(field, WireType::kFixed64);
    fixed(std::bit_cast<std::uint64_t>(value));
  }
  void add_float(int field, float value) {
    tag(field, WireType::kFixed32);
    fixed(std::bit_cast<std::uint32_t>(value));
  }
  // Bytes, text or a message.
  void add_bytes(int field, std::string_view bytes) {
    tag(field, WireType::kBytes);
    varint(bytes.size());
    text_.append(bytes);
  }
  const std::string& text() const { return text_; }

 private:
  void tag(int field, WireType type) { varint(static_cast<std::uint64_t>(field) << 3 | static_cast<unsigned>(type)); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_.push_back(static_cast<char>(value | 0x80));
    text_.push_back(static_cast<char>(value));
  }
  template <class Number>
  void fixed(Number number) {
    for (std::size_t i = 0; i < sizeof number; ++i) text_.push_back(static_cast<char>(number >> (8 * i)));
  }

  std::string text_;
};

class WireError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class MessageReader {
 public:
  explicit MessageReader(std::string_view message) : rest_(message) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t tag = read_varint();
    field_ = tag >> 3;
    if (field_ == 0) throw WireError("field 0, which no message has");
    type_ = static_cast<WireType>(tag & 7);
    switch (type_) {
      case WireType::kVarint:
        number_ = read_varint();
        return true;
      case WireType::kFixed64:
        number_ = read_fixed(8);
        return true;
      case WireType::kFixed32:
        number_ = read_fixed(4);
        return true;
      case WireType::kBytes:
        bytes_ = take(read_varint());
        return true;
    }
    throw WireError("a field of wire type " + std::to_string(tag & 7));
  }

  // The value of the present field.
  bool is(std::uint64_t field, WireType type) const { return field_ == field && type_ == type; }
  std::uint64_t number() const { return number_; }
  double as_double() const { return std::bit_cast<double>(number_); }
  float as_float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(number_)); }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) throw WireError("a field that is longer than its message");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::uint64_t read_fixed(std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; const char byte : take(count)) {
      value |= std::uint64_t{static_cast<unsigned char>(byte)} << (8 * i++);
    }
    return value;
  }
  std::uint64_t read_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    throw WireError("a number of more than 10 bytes");
  }

  std::string_view rest_;
  std::uint64_t field_ = 0;
  WireType type_ = WireType::kVarint;
  std::uint64_t number_ = 0;
  std::string_view bytes_;
};

}  // namespace loom::io
