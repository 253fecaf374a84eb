#include "engine/config/value.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::config {
namespace {

constexpr std::array<std::string_view, 9> kTrue = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
constexpr std::array<std::string_view, 9> kFalse = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, text) != words.end();
}

// JSON has no other way to write a text.
std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void Value::set_scalar(std::string text, Style style, std::string tag) {
  scalar_ = std::move(text);
  style_ = style;
  tag_ = std::move(tag);
}

bool Value::is_text() const { return is_scalar() && !boolean() && !number(); }

std::optional<bool> Value::boolean() const {
  if (!is_scalar() || style_ != Style::kPlain) return std::nullopt;
  if (std::ranges::find(kTrue, scalar_) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, scalar_) != kFalse.end()) return false;
  return std::nullopt;
}

std::optional<std::int64_t> Value::whole() const {
  if (!is_scalar() || style_ != Style::kPlain) return std::nullopt;
  const std::string_view digits = std::string_view(scalar_).substr(scalar_.starts_with('-') ? 1 : 0);
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;  // octal to Python's YAML
  return parse_number<std::int64_t>(scalar_);
}

std::optional<double> Value::number() const {
  if (!is_scalar() || style_ != Style::kPlain || scalar_.empty()) return std::nullopt;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (is_one_of(scalar_, {".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"})) return kInfinity;
  if (is_one_of(scalar_, {"-.inf", "-.Inf", "-.INF"})) return -kInfinity;
  if (is_one_of(scalar_, {".nan", ".NaN", ".NAN"})) return std::numeric_limits<double>::quiet_NaN();
  // parse_number also takes the words inf and nan, which are texts in YAML.
  if (scalar_.find_first_of("0123456789") == std::string::npos) return std::nullopt;
  return parse_number<double>(scalar_);
}

const Value* Value::find(std::string_view key) const {
  const auto found = std::find_if(items_.rbegin(), items_.rend(), [&](const Value& item) { return item.key_ == key; });
  return !is_mapping() || found == items_.rend() ? nullptr : &*found;
}

std::string Value::shown() const {
  if (is_list()) return "a list";
  if (is_mapping()) return "a mapping";
  if (is_null()) return "empty";
  if (style_ == Style::kTagged) return fmt::format("a value with the tag {}", shown_text(tag_));
  return shown_text(style_ == Style::kQuoted ? fmt::format("{:?}", scalar_) : scalar_);
}

std::string Value::json() const {
  if (is_null()) return "null";
  if (is_scalar()) return is_text() ? json_text(scalar_) : scalar_;
  std::vector<std::string> parts;
  for (const Value& item : items_) {
    parts.push_back(is_mapping() ? fmt::format("{}:{}", json_text(item.key_), item.json()) : item.json());
  }
  return fmt::format("{}{}{}", is_mapping() ? '{' : '[', fmt::join(parts, ","), is_mapping() ? '}' : ']');
}

void Value::refuse(std::string_view allowed) const {
  config_error("{}: {} is {}; use {}", where(), path_, shown(), allowed);
}

}  // namespace loom::config
