#include "engine/train/saved_arguments.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/shown_text.h"

namespace loom::train {
namespace {

using io::PlainValue;

bool is_number(const PlainValue& value) {
  return value.is(PlainValue::Kind::kWhole) || value.is(PlainValue::Kind::kReal);
}

}  // namespace

std::string name_in_files(std::string_view flag) {
  std::string name(flag.substr(2));
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string shown_argument(const PlainValue& value) {
  using Kind = PlainValue::Kind;
  switch (value.kind()) {
    case Kind::kNone:
      return "none";
    case Kind::kBool:
      return value.as_bool() ? "the flag" : "none";
    case Kind::kWhole:
      return fmt::to_string(value.as_whole());
    case Kind::kReal:
      return fmt::to_string(value.as_real());
    case Kind::kText:
      return value.as_text().empty() ? "none" : shown_text(value.as_text());
    case Kind::kList: {
      std::vector<std::string> items;
      for (const PlainValue& item : value.items()) items.push_back(shown_argument(item));
      return fmt::format("{}", fmt::join(items, " "));
    }
    default:
      return value.repr();
  }
}

bool is_same_argument(const PlainValue& saved, const PlainValue& own) {
  if (is_number(saved) && is_number(own)) return saved.as_real() == own.as_real();
  if (saved.kind() == own.kind()) return saved == own;
  const bool was_word = saved.is(PlainValue::Kind::kText) && own.is(PlainValue::Kind::kBool);
  if (was_word) return saved.as_text() == (own.as_bool() ? "true" : "false");
  return shown_argument(saved) == shown_argument(own);
}

}  // namespace loom::train
