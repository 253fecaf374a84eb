#include "engine/config/section.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::config {

void refuse_key(const Value& member, std::span<const std::string_view> known) {
  const std::vector<std::string> names(known.begin(), known.end());
  const std::string where = member.place().key.text();
  if (const auto nearest = nearest_spelling(member.key(), names)) {
    config_error("{}: unknown key '{}'; did you mean {}?", where, member.path(), *nearest);
  }
  config_error("{}: unknown key '{}'; the keys{} are {}", where, member.path(),
               member.path() == member.key() ? "" : " here", fmt::join(names, ", "));
}

void refuse_keys(std::string_view file, std::span<const std::string> lines) {
  if (lines.empty()) return;
  if (lines.size() == 1) config_error("{}", lines.front());
  config_error("{}: {} keys are refused:\n  {}", escaped(file), lines.size(), fmt::join(lines, "\n  "));
}

Section::Section(Value mapping, UnknownKeys unknown_keys) : mapping_(std::move(mapping)), unknown_keys_(unknown_keys) {
  if (!mapping_.is_mapping()) mapping_.refuse("a mapping of key: value lines");
}

Section::Section(Value mapping, const KeyTable& keys) : Section(std::move(mapping), UnknownKeys::kRefused) {
  std::vector<std::string_view> known = keys.required;
  known.insert(known.end(), keys.optional.begin(), keys.optional.end());
  for (const Value& member : mapping_.items()) {
    if (std::ranges::find(known, member.key()) == known.end()) refuse_key(member, known);
  }
  const bool document = mapping_.path().empty();
  for (const std::string_view key : keys.required) {
    if (mapping_.find(key) != nullptr) continue;
    const SourceMark& mark = mapping_.place().key;
    config_error("{}: {} has no {}; {}", document ? mark.file : mark.text(),
                 document ? keys.document : std::string_view(mapping_.path()), key, keys.advice);
  }
}

const Value& Section::operator[](std::string_view key) const {
  const Value* value = mapping_.find(key);
  require(value != nullptr, "{} is read, but no table requires it", dotted(key));
  return *value;
}

std::string Section::dotted(std::string_view key) const {
  return mapping_.path().empty() ? std::string(key) : fmt::format("{}.{}", mapping_.path(), key);
}

std::string Section::where(std::string_view key) const {
  const Value* value = mapping_.find(key);
  return value == nullptr ? mapping_.place().key.file : value->place().key.text();
}

const Value* Section::find(std::string_view key) const {
  asked_.emplace(key);
  const Value* value = mapping_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool Section::has(std::string_view key) const { return find(key) != nullptr; }

void Section::reject_value(std::string_view key, std::string_view message) const {
  const Value* value = mapping_.find(key);
  if (value == nullptr) config_error("{}: {} is absent; {}", where(key), dotted(key), message);
  config_error("{}: {} is {}; {}", where(key), value->path(), shown_text(value->json()), message);
}

void Section::reject_missing(std::string_view key) const {
  std::vector<std::string> others;
  for (const Value& member : mapping_.items()) {
    if (!asked_.contains(member.key())) others.push_back(member.key());
  }
  if (const auto near = nearest_spelling(key, others)) {
    config_error("{}: unknown key '{}'; did you mean '{}'?", where(*near), dotted(*near), dotted(key));
  }
  config_error("{}: {} is missing", mapping_.place().key.file, dotted(key));
}

const Value& Section::required(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) reject_missing(key);
  return *value;
}

std::int64_t Section::count(std::string_view key) const {
  required(key);
  return count(key, 1);
}

std::int64_t Section::count(std::string_view key, std::int64_t fallback) const {
  const Value* given = find(key);
  if (given == nullptr) return fallback;
  // Digits that 64 bits do not hold are a whole number too.
  const bool digits = given->is_scalar() && given->number() && !given->scalar().empty() &&
                      given->scalar().find_first_not_of("0123456789") == std::string::npos;
  if (digits && given->whole().value_or(kMostCount + 1) > kMostCount && given->scalar().front() != '0') {
    reject(key, "it must be at most {}", kMostCount);
  }
  const std::int64_t value = *integer(key);
  if (value < 1) reject(key, "it must be at least 1");
  return value;
}

std::optional<std::int64_t> Section::integer(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto whole = value->whole();
  if (!whole) reject(key, "a whole number is expected");
  return whole;
}

std::vector<std::int64_t> Section::integers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_list()) return {*integer(key)};
  std::vector<std::int64_t> list;
  for (const Value& item : value->items()) {
    const auto whole = item.whole();
    if (!whole) reject(key, "whole numbers are expected");
    list.push_back(*whole);
  }
  return list;
}

std::optional<double> Section::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = value->number();
  if (!number) reject(key, "a number is expected");
  return number;
}

double Section::positive(std::string_view key, double fallback) const {
  const double value = number(key).value_or(fallback);
  if (std::isinf(value) && value > 0) reject(key, "it must be finite");
  if (!(value > 0)) reject(key, "it must be greater than 0");
  return value;
}

bool Section::flag(std::string_view key, bool fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return fallback;
  const auto flag = value->boolean();
  if (!flag) reject(key, "true or false is expected");
  return *flag;
}

std::string Section::text(std::string_view key) const {
  required(key);
  return text(key, "");
}

std::string Section::text(std::string_view key, std::string_view fallback) const {
  const Value* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_text()) reject(key, "a text is expected");
  return value->scalar();
}

std::vector<std::string> Section::texts(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_list()) reject(key, "a list of texts is expected");
  std::vector<std::string> list;
  for (const Value& item : value->items()) {
    if (!item.is_text()) reject(key, "a list of texts is expected");
    list.push_back(item.scalar());
  }
  return list;
}

std::optional<Section> Section::mapping(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_mapping()) reject(key, "a mapping is expected");
  return Section(*value, unknown_keys_);
}

void Section::refuse_unread() const {
  const std::vector<std::string> known(asked_.begin(), asked_.end());
  for (const Value& member : mapping_.items()) {
    if (asked_.contains(member.key())) continue;
    const auto near = nearest_spelling(member.key(), known);
    config_error("{}: unknown key '{}'{}", where(member.key()), dotted(member.key()),
                 near ? fmt::format("; did you mean '{}'?", dotted(*near)) : "");
  }
}

}  // namespace loom::config
