#include "engine/text/template/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/text.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data::jinja {
namespace {

std::string checked_text(const std::string& text) {
  if (const auto at = invalid_utf8(text)) fail("the text '{}' is no UTF-8 at byte {}", shown_text(text), *at);
  return text;
}

class Writer {
 public:
  Writer(const JsonStyle& style, Budget& budget) : style_(&style), to_(budget) {}

  std::string run(const Value& value) {
    write(value, 0);
    return to_.take();
  }

 private:
  void write(const Value& value, int level) {
    to_.budget().work(1);
    switch (value.kind()) {
      case Kind::kNone:
        to_ += "null";
        return;
      case Kind::kBool:
        to_ += value.as_bool() ? "true" : "false";
        return;
      case Kind::kInteger:
        append_str(to_, value);
        return;
      case Kind::kFloat:
        to_ += float_json(value.as_float());
        return;
      case Kind::kText:
        return write_text(value.as_text());
      case Kind::kDict:
        return write_dict(value.as_dict(), level + 1);
      default:
        break;
    }
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_sequence_of(ListKind::kList) && !value.is_sequence_of(ListKind::kTuple)) {
      fail("a value of type '{}' cannot be written as JSON", type_name(value));
    }
    write_list(value.as_list().items, level + 1);
  }

  static std::string float_json(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  void new_line(int level) {
    if (!style_->indented) return;
    to_ += "\n";
    to_.repeat(style_->indent, static_cast<std::size_t>(level));
  }

  void write_list(const std::vector<Value>& items, int level) {
    if (items.empty()) {
      to_ += "[]";
      return;
    }
    std::string_view before = "[";
    for (const Value& item : items) {
      to_ += before;
      before = style_->between_items;
      new_line(level);
      write(item, level);
    }
    new_line(level - 1);
    to_ += "]";
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.entries.empty()) {
      to_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    to_.budget().work(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_->sort_keys) {
      std::ranges::stable_sort(entries,
                               [&](const auto* a, const auto* b) { return is_less(a->first, b->first, to_.budget()); });
    }
    std::string_view before = "{";
    for (const auto* entry : entries) {
      to_ += before;
      before = style_->between_items;
      new_line(level);
      write_key(entry->first);
      to_ += style_->behind_key;
      write(entry->second, level);
    }
    new_line(level - 1);
    to_ += "}";
  }

  void write_key(const Value& key) {
    if (key.is_text()) return write_text(key.as_text());
    if (!key.is_number() && !key.is_none()) fail("a key of type '{}' cannot be written as JSON", type_name(key));
    to_ += "\"";
    write(key, 0);
    to_ += "\"";
  }

  void write_text(std::string_view text) {
    to_.budget().characters(text.size());
    to_ += "\"";
    std::size_t plain = 0;  // where the text begins that needs no escape
    for (std::size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      const std::string escape = escape_of(character.code);
      if (!escape.empty()) {
        to_ += text.substr(plain, at - plain);
        to_ += escape;
        plain = at + character.bytes;
      }
      at += character.bytes;
    }
    to_ += text.substr(plain);
    to_ += "\"";
  }

  std::string escape_of(char32_t code) const {
    constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f";
    constexpr std::string_view kLetters = "\"\\nrtbf";
    if (code < 0x80) {
      const auto at = kSpecial.find(static_cast<char>(code));
      if (at != std::string_view::npos && code != 0) return std::string("\\") + kLetters[at];
    }
    if (code < 0x20) return fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    if (code < 0x7f || !style_->ensure_ascii) return "";
    if (code < 0x80) return "";
    if (code < 0x10000) return fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    const auto rest = static_cast<std::uint32_t>(code) - 0x10000U;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd800U + (rest >> 10U), 0xdc00U + (rest & 0x3ffU));
  }

  const JsonStyle* style_;
  Builder to_;
};

}  // namespace

Value value_of(const nlohmann::ordered_json& json, int level) {
  if (level > kMostValueDepth) fail("lists and objects are nested more than {} levels deep", kMostValueDepth);
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail("the number {} has more than 63 bits; write it as text", json.get<std::uint64_t>());
      }
      [[fallthrough]];
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string:
      return checked_text(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(value_of(item, level + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, item] : json.items()) {
        entries.emplace_back(checked_text(key), value_of(item, level + 1));
      }
      return Value::dict(std::move(entries));
    }
    default:
      return Value::none();
  }
}

std::string json_text(const Value& value, const JsonStyle& style, Budget& budget) {
  return Writer(style, budget).run(value);
}

}  // namespace loom::data::jinja
