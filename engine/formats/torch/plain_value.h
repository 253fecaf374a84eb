// PlainValue: a value of Python without a tensor in it, as checkpoints keep them beside their tensors: None, bool, int,
// float, str, bytes, tuple, list, dict.
//
// Whole    numbers have 64 bits with sign.
// Threads  a value; safe to read from any number of threads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loom::io {

class PlainValue {
 public:
  enum class Kind : std::uint8_t { kNone, kBool, kWhole, kReal, kText, kBytes, kTuple, kList, kDict };

  PlainValue() = default;  // None
  static PlainValue boolean(bool value);
  static PlainValue whole(std::int64_t value);
  static PlainValue real(double value);
  static PlainValue text(std::string value);
  static PlainValue bytes(std::string value);
  static PlainValue tuple(std::vector<PlainValue> items);
  static PlainValue list(std::vector<PlainValue> items);
  static PlainValue dict(std::vector<std::pair<PlainValue, PlainValue>> entries);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }

  // InvariantError for a value of another kind. as_real() takes whole numbers too.
  bool as_bool() const;
  std::int64_t as_whole() const;
  double as_real() const;
  const std::string& as_text() const;            // also of bytes
  const std::vector<PlainValue>& items() const;  // of a tuple or a list; of a dict keys and values in turn
  // The value under a text key of a dict, or null.
  const PlainValue* find(std::string_view key) const;

  // As Python's repr() writes it, control characters escaped, bytes as "<2 bytes>"; cut behind `most` bytes with "...".
  std::string repr(std::size_t most = 200) const;

  bool operator==(const PlainValue&) const = default;

 private:
  Kind kind_ = Kind::kNone;
  std::int64_t whole_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<PlainValue> items_;
};

}  // namespace loom::io
