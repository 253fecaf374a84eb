// Value: one value of the user's file - a scalar, a list or a mapping - with its place, as the user wrote it.
//
// Both YAML and JSON are read into it (document.h). A scalar keeps its text, which these members interpret:
//   boolean   what Python's YAML reads as one: true True TRUE yes on, false False FALSE no off; without quotes.
//   whole     decimal digits with an optional minus, without quotes and leading zeros, within 64 bits.
//   number    a decimal number in any notation (12, -0.5, 1e9), or .inf and .nan as YAML writes them; without quotes.
//   text      everything in quotes, and every other scalar.
//
// Threads   a value that is not changed may be read by all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/source_mark.h"

namespace loom::config {

class Value {
 public:
  enum class Kind : std::uint8_t { kNull, kScalar, kList, kMapping };
  enum class Style : std::uint8_t { kPlain, kQuoted, kTagged };

  Value() = default;
  // An empty value of a kind; `path` is dotted ("links.levels[0].name", "" is the document), `key` its last part when
  // it is a member of a mapping.
  Value(Kind kind, std::string path, std::string key, Place place)
      : kind_(kind), path_(std::move(path)), key_(std::move(key)), place_(std::move(place)) {}
  // The content of a scalar. `tag` is for kTagged ("!!str").
  void set_scalar(std::string text, Style style, std::string tag = "");
  Value& add(Value item) { return items_.emplace_back(std::move(item)); }

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_scalar() const { return kind_ == Kind::kScalar; }
  bool is_list() const { return kind_ == Kind::kList; }
  bool is_mapping() const { return kind_ == Kind::kMapping; }
  bool is_tagged() const { return is_scalar() && style_ == Style::kTagged; }
  bool is_text() const;

  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }
  const Place& place() const { return place_; }
  // "file:line:column" of the value; of its key when it is empty.
  std::string where() const { return place_.value.text(); }

  // The text of a scalar, its quotes taken off.
  const std::string& scalar() const { return scalar_; }
  std::optional<bool> boolean() const;
  std::optional<std::int64_t> whole() const;
  std::optional<double> number() const;
  // The entries of a list, or the members of a mapping in the order of the file.
  const std::vector<Value>& items() const { return items_; }
  // A member of a mapping (the last of that name); null when there is none.
  const Value* find(std::string_view key) const;

  // As a message shows it, long ones cut: 64GiB, "64", a list, a mapping, empty.
  std::string shown() const;
  // In one line of JSON: 64, "auto", ["a","b"]. Plain scalars are printed as written.
  std::string json() const;
  // Throws ConfigError "WHERE: PATH is VALUE; use ALLOWED".
  [[noreturn]] void refuse(std::string_view allowed) const;

 private:
  Kind kind_ = Kind::kNull;
  Style style_ = Style::kPlain;
  std::string path_;
  std::string key_;
  Place place_;
  std::string scalar_;
  std::string tag_;
  std::vector<Value> items_;
};

}  // namespace loom::config
