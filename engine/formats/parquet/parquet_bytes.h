// Bytes of a parquet file, read from the front, and errors in them. Private to engine/formats.
//
// Errors   BadBytes with the reason; a caller with the column and the place adds them. MissingBytes: the bytes end too
//          early, more of them may help.
#pragma once

#include <cstdint>
#include <cstring>
#include <fmt/core.h>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace loom::io {

class BadBytes : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class MissingBytes : public BadBytes {
 public:
  using BadBytes::BadBytes;
};

template <class... Args>
[[noreturn]] void bad_bytes(fmt::format_string<Args...> format, Args&&... args) {
  throw BadBytes(fmt::format(format, std::forward<Args>(args)...));
}

class ByteCursor {
 public:
  explicit ByteCursor(std::string_view bytes) : rest_(bytes) {}

  std::string_view rest() const { return rest_; }

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) {
      throw MissingBytes(fmt::format("{} bytes are claimed where {} are left", count, rest_.size()));
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1).front()); }

  // Little endian.
  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      value |= std::uint64_t{next & 0x7FU} << shift;
      if (next < 0x80) return value;
    }
    bad_bytes("a number of more than 10 bytes");
  }

  std::int64_t zigzag() {
    const std::uint64_t value = varint();
    return static_cast<std::int64_t>(value >> 1 ^ (0 - (value & 1)));
  }

 private:
  std::string_view rest_;
};

}  // namespace loom::io
