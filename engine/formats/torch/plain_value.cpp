#include "engine/formats/torch/plain_value.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::io {
namespace {

using Kind = PlainValue::Kind;

void append(std::string& text, const PlainValue& value, std::size_t most);

void append_items(std::string& text, const PlainValue& value, std::size_t most) {
  const bool is_tuple = value.is(Kind::kTuple);
  text += is_tuple ? '(' : '[';
  for (std::size_t i = 0; i < value.items().size() && text.size() <= most; ++i) {
    if (i > 0) text += ", ";
    append(text, value.items()[i], most);
  }
  if (is_tuple && value.items().size() == 1) text += ',';
  text += is_tuple ? ')' : ']';
}

void append_dict(std::string& text, const PlainValue& value, std::size_t most) {
  text += '{';
  for (std::size_t i = 0; i < value.items().size() && text.size() <= most; ++i) {
    if (i > 0) text += i % 2 == 0 ? ", " : ": ";
    append(text, value.items()[i], most);
  }
  text += '}';
}

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  const bool plain = text.find_first_not_of("-0123456789") == std::string::npos;
  return plain ? text + ".0" : text;
}

// Python takes double quotes where the text has single ones only.
void append_text(std::string& text, const std::string& value) {
  const bool has_single = value.find('\'') != std::string::npos;
  const char quote = has_single && value.find('"') == std::string::npos ? '"' : '\'';
  text += quote + escaped(value) + quote;
}

void append(std::string& text, const PlainValue& value, std::size_t most) {
  switch (value.kind()) {
    case Kind::kNone:
      text += "None";
      break;
    case Kind::kBool:
      text += value.as_bool() ? "True" : "False";
      break;
    case Kind::kWhole:
      text += fmt::to_string(value.as_whole());
      break;
    case Kind::kReal:
      text += real_text(value.as_real());
      break;
    case Kind::kText:
      append_text(text, value.as_text().substr(0, most));
      break;
    case Kind::kBytes:
      text += fmt::format("<{} bytes>", value.as_text().size());
      break;
    case Kind::kTuple:
    case Kind::kList:
      append_items(text, value, most);
      break;
    case Kind::kDict:
      append_dict(text, value, most);
      break;
  }
}

}  // namespace

PlainValue PlainValue::boolean(bool value) {
  PlainValue made;
  made.kind_ = Kind::kBool;
  made.whole_ = value ? 1 : 0;
  return made;
}

PlainValue PlainValue::whole(std::int64_t value) {
  PlainValue made;
  made.kind_ = Kind::kWhole;
  made.whole_ = value;
  return made;
}

PlainValue PlainValue::real(double value) {
  PlainValue made;
  made.kind_ = Kind::kReal;
  made.real_ = value;
  return made;
}

PlainValue PlainValue::text(std::string value) {
  PlainValue made;
  made.kind_ = Kind::kText;
  made.text_ = std::move(value);
  return made;
}

PlainValue PlainValue::bytes(std::string value) {
  PlainValue made = text(std::move(value));
  made.kind_ = Kind::kBytes;
  return made;
}

PlainValue PlainValue::tuple(std::vector<PlainValue> items) {
  PlainValue made = list(std::move(items));
  made.kind_ = Kind::kTuple;
  return made;
}

PlainValue PlainValue::list(std::vector<PlainValue> items) {
  PlainValue made;
  made.kind_ = Kind::kList;
  made.items_ = std::move(items);
  return made;
}

PlainValue PlainValue::dict(std::vector<std::pair<PlainValue, PlainValue>> entries) {
  PlainValue made;
  made.kind_ = Kind::kDict;
  for (auto& [key, value] : entries) {
    made.items_.push_back(std::move(key));
    made.items_.push_back(std::move(value));
  }
  return made;
}

bool PlainValue::as_bool() const {
  require(kind_ == Kind::kBool, "a value is not a bool");
  return whole_ != 0;
}

std::int64_t PlainValue::as_whole() const {
  require(kind_ == Kind::kWhole, "a value is not a whole number");
  return whole_;
}

double PlainValue::as_real() const {
  require(kind_ == Kind::kReal || kind_ == Kind::kWhole, "a value is not a number");
  return kind_ == Kind::kReal ? real_ : static_cast<double>(whole_);
}

const std::string& PlainValue::as_text() const {
  require(kind_ == Kind::kText || kind_ == Kind::kBytes, "a value is not a text");
  return text_;
}

const std::vector<PlainValue>& PlainValue::items() const {
  require(kind_ == Kind::kTuple || kind_ == Kind::kList || kind_ == Kind::kDict, "a value has no items");
  return items_;
}

const PlainValue* PlainValue::find(std::string_view key) const {
  if (kind_ != Kind::kDict) return nullptr;
  for (std::size_t i = 0; i + 1 < items_.size(); i += 2) {
    if (items_[i].is(Kind::kText) && items_[i].text_ == key) return &items_[i + 1];
  }
  return nullptr;
}

std::string PlainValue::repr(std::size_t most) const {
  std::string text;
  append(text, *this, most);
  if (text.size() > most) text = text.substr(0, most) + "...";
  return text;
}

}  // namespace loom::io
