// Thrift's compact protocol: structs are read field by field, unknown fields are passed over.
// Private to engine/formats.
//
// Bounds   32 levels; a list has no more items than bytes are left.
// Errors   BadBytes.
// Source   github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/formats/parquet/parquet_bytes.h"

namespace loom::io {

class ThriftReader {
 public:
  enum class Type : std::uint8_t {
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kI16 = 4,
    kI32 = 5,
    kI64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12
  };

  explicit ThriftReader(std::string_view bytes) : bytes_(bytes), size_(bytes.size()) {}

  std::size_t used() const { return size_ - bytes_.rest().size(); }

  // Calls on_field(number of the field, its type) for each field; false passes over its value.
  template <class OnField>
  void fields(OnField&& on_field) {
    enter();
    for (std::int64_t field = 0;;) {
      const std::uint8_t head = bytes_.byte();
      if (head == 0) break;
      field = head >> 4 ? field + (head >> 4) : bytes_.zigzag();
      if (field < std::numeric_limits<std::int16_t>::min() || field > std::numeric_limits<std::int16_t>::max()) {
        bad_bytes("a field with the number {}", field);
      }
      const auto type = static_cast<Type>(head & 0xF);
      if (!on_field(static_cast<int>(field), type)) skip(type);
    }
    --depth_;
  }

  // Calls on_item() for each item of a list of this type.
  template <class OnItem>
  void items(Type type, Type item, OnItem&& on_item) {
    expect(type, Type::kList);
    const auto [count, found] = list_head();
    if (count > 0) expect(found, item);
    for (std::uint64_t i = 0; i < count; ++i) on_item();
  }

  std::int64_t i64(Type type) {
    if (type < Type::kByte || type > Type::kI64) refuse(type);
    return type == Type::kByte ? static_cast<std::int8_t>(bytes_.byte()) : bytes_.zigzag();
  }

  std::int32_t i32(Type type) {
    const std::int64_t value = i64(type);
    if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
      bad_bytes("{} where a number of 32 bits is due", value);
    }
    return static_cast<std::int32_t>(value);
  }

  bool boolean(Type type) {
    if (type != Type::kTrue) expect(type, Type::kFalse);
    return type == Type::kTrue;
  }

  std::string_view text(Type type) {
    expect(type, Type::kBinary);
    return bytes_.take(bytes_.varint());
  }

  static void expect(Type type, Type wanted) {
    if (type != wanted) refuse(type);
  }

 private:
  struct ListHead {
    std::uint64_t count;
    Type item;
  };

  [[noreturn]] static void refuse(Type type) {
    bad_bytes("a field has the type {} of Thrift, which is another one than the format's", static_cast<int>(type));
  }

  void enter() {
    if (++depth_ > 32) bad_bytes("nested deeper than 32 levels");
  }

  ListHead list_head() {
    const std::uint8_t head = bytes_.byte();
    const std::uint64_t count = head >> 4 == 15 ? bytes_.varint() : head >> 4;
    if (count > bytes_.rest().size()) {
      throw MissingBytes(fmt::format("a list of {} items in {} bytes", count, bytes_.rest().size()));
    }
    return {count, static_cast<Type>(head & 0xF)};
  }

  void skip(Type type) {
    switch (type) {
      case Type::kTrue:
      case Type::kFalse:
        return;
      case Type::kByte:
        bytes_.byte();
        return;
      case Type::kI16:
      case Type::kI32:
      case Type::kI64:
        bytes_.varint();
        return;
      case Type::kDouble:
        bytes_.take(8);
        return;
      case Type::kBinary:
        bytes_.take(bytes_.varint());
        return;
      case Type::kList:
      case Type::kSet:
        return skip_list();
      case Type::kMap:
        return skip_map();
      case Type::kStruct:
        return fields([](int, Type) { return false; });
    }
    refuse(type);
  }

  // Booleans have a byte here.
  void skip_item(Type type) { type == Type::kTrue || type == Type::kFalse ? void(bytes_.byte()) : skip(type); }

  void skip_list() {
    enter();
    const auto [count, item] = list_head();
    for (std::uint64_t i = 0; i < count; ++i) skip_item(item);
    --depth_;
  }

  void skip_map() {
    enter();
    const std::uint64_t count = bytes_.varint();
    if (count > bytes_.rest().size()) throw MissingBytes(fmt::format("a map of {} pairs", count));
    const std::uint8_t types = count > 0 ? bytes_.byte() : 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      skip_item(static_cast<Type>(types >> 4));
      skip_item(static_cast<Type>(types & 0xF));
    }
    --depth_;
  }

  ByteCursor bytes_;
  std::size_t size_;
  int depth_ = 0;
};

}  // namespace loom::io
