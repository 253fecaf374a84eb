// Section: one mapping of the user's file, read key by key.
//
// Two ways    by a KeyTable, which lists the required and the optional keys: every other key is refused when the
//             section is made, and section[key] gives the values. Or key by key: the typed look-ups note their keys,
//             and refuse_unread() refuses the keys never read.
// Strictness  UnknownKeys: our own files have no unknown keys; files of others (Hugging Face's JSON) may have more.
// null        counts as absent in the typed look-ups.
// Errors      ConfigError "WHERE: key is VALUE; ..." or "WHERE: unknown key 'KEY'; did you mean ...?". Nested keys are
//             dotted.
// Threads     one section is read by one thread: look-ups note their keys.
#pragma once

#include <cstdint>
#include <fmt/core.h>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/value.h"

namespace loom::config {

enum class UnknownKeys : std::uint8_t { kRefused, kMayBe };

struct KeyTable {
  std::vector<std::string_view> required;
  std::vector<std::string_view> optional;
  // For the message about a missing key: the name of the document, and why the key is needed.
  std::string_view document = "the file";
  std::string_view advice = "write it";
};

// The largest count: the number of ids in an int32. The product of two counts fits into 64 bits.
inline constexpr std::int64_t kMostCount = 2147483647;

// Throws for a member of a mapping whose key is not one of `known`: the nearest spelling, or the list of them.
[[noreturn]] void refuse_key(const Value& member, std::span<const std::string_view> known);

// Throws one ConfigError for all keys of a file that are refused, a line each; nothing if there are none.
void refuse_keys(std::string_view file, std::span<const std::string> lines);

class Section {
 public:
  // Read key by key. A `mapping` that is not a mapping is refused.
  Section(Value mapping, UnknownKeys unknown_keys);
  // Read by a table: unknown keys are refused, then missing ones.
  Section(Value mapping, const KeyTable& keys);

  // YAML is ours: unknown keys are errors there. JSON is Hugging Face's: it may hold more than we read.
  bool strict() const { return unknown_keys_ == UnknownKeys::kRefused; }
  // The whole mapping.
  const Value& value() const { return mapping_; }
  // A value that is there.
  const Value& operator[](std::string_view key) const;
  // Null when the key is not given; an empty value is given.
  const Value* given(std::string_view key) const { return mapping_.find(key); }

  // --- typed look-ups ---
  bool has(std::string_view key) const;

  // Required, from 1 to kMostCount.
  std::int64_t count(std::string_view key) const;
  std::int64_t count(std::string_view key, std::int64_t fallback) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  // One integer or a list of them; empty when absent.
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  // Finite and > 0.
  double positive(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::vector<std::string> texts(std::string_view key) const;
  // A nested mapping.
  std::optional<Section> mapping(std::string_view key) const;

  // Throws ConfigError "WHERE: key is VALUE; MESSAGE".
  template <class... Args>
  [[noreturn]] void reject(std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
    reject_value(key, fmt::format(format, std::forward<Args>(args)...));
  }
  // "file:line:column" of a key, or "file".
  std::string where(std::string_view key) const;
  // Throws for the first key that was never read, with the nearest spelling among the keys that were.
  void refuse_unread() const;

 private:
  [[noreturn]] void reject_value(std::string_view key, std::string_view message) const;
  [[noreturn]] void reject_missing(std::string_view key) const;
  // Null when absent; notes that the key was read.
  const Value* find(std::string_view key) const;
  const Value& required(std::string_view key) const;
  std::string dotted(std::string_view key) const;

  Value mapping_;
  UnknownKeys unknown_keys_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace loom::config
