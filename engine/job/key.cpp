#include "engine/job/key.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/parse_number.h"
#include "engine/job/read_words.h"
#include "engine/job/rows.h"

namespace loom::job {
namespace {

Value whole_of(const Key& key, const std::string& text) {
  const auto number = parse_number<std::int64_t>(text);
  if (number && *number > key.most) {
    config_error("{} is {}; use a whole number from {} to {}", key.name(), shown_text(text), key.least, key.most);
  }
  return read_whole<std::int64_t>(key.name(), text, key.least);
}

struct Text {
  std::string operator()(const None&) const { return "none"; }
  std::string operator()(bool on) const { return on ? "true" : "false"; }
  std::string operator()(std::int64_t number) const { return fmt::to_string(number); }
  std::string operator()(double number) const { return fmt::to_string(number); }
  std::string operator()(const std::string& text) const { return text; }
  std::string operator()(const Texts& texts) const { return fmt::format("{}", fmt::join(texts, " ")); }
  std::string operator()(const Numbers& numbers) const { return fmt::format("{}", fmt::join(numbers, " ")); }
};

}  // namespace

std::string text_of(const Value& value) { return std::visit(Text{}, value); }

void add_under(std::string_view heading, std::initializer_list<Key> rows, std::vector<Key>& table) {
  for (Key key : rows) {
    key.heading = heading;
    table.push_back(key);
  }
}

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> rows;
    add_model_keys(rows);
    add_shape_keys(rows);
    add_data_keys(rows);
    add_objective_keys(rows);
    add_schedule_keys(rows);
    add_optimizer_keys(rows);
    add_recompute_keys(rows);
    add_execution_keys(rows);
    add_memory_keys(rows);
    add_output_keys(rows);
    add_checkpoint_keys(rows);
    add_log_keys(rows);
    return rows;
  }();
  return table;
}

const std::vector<Key>& foreign_keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> rows;
    add_foreign_keys(rows);
    return rows;
  }();
  return table;
}

bool is_added(const WrittenFlags& written, std::string_view flag) {
  return std::ranges::any_of(written.added_flags, [&](const auto& added) { return added.first == flag; });
}

std::vector<std::string_view> Key::names() const {
  std::vector<std::string_view> names;
  for (std::string_view rest = flags; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    names.push_back(one.starts_with('!') ? one.substr(1) : one);
  }
  return names;
}

const Key* find_key(std::string_view flag) {
  const std::string name = fmt::format(",{},", flag);
  for (const std::vector<Key>* table : {&keys(), &foreign_keys()}) {
    const auto found = std::ranges::find_if(
        *table, [&](const Key& key) { return fmt::format(",{},", key.flags).find(name) != std::string::npos; });
    if (found != table->end()) return &*found;
  }
  return nullptr;
}

Value read_value(const Key& key, const Texts& words) {
  switch (key.kind) {
    case Kind::kToggle:
      return true;
    case Kind::kWhole:
      return whole_of(key, words.back());
    case Kind::kReal:
      return read_real(key.name(), words.back(), key.range.holds, key.range.allowed);
    case Kind::kChoice:
      return read_choice(key.name(), words.back(), key.words());
    case Kind::kText:
      return read_text(key.name(), words.back());
    case Kind::kTexts:
      return words;
    case Kind::kNumbers:
      return read_numbers<std::int64_t>(key.name(), words, key.least);
  }
  return None{};
}

Texts words_of(const Key& key, const Value& value) {
  if (key.kind == Kind::kToggle || std::holds_alternative<None>(value)) return {};
  if (const auto* texts = std::get_if<Texts>(&value)) return *texts;
  if (const auto* numbers = std::get_if<Numbers>(&value)) {
    Texts words;
    for (const std::int64_t number : *numbers) words.push_back(fmt::to_string(number));
    return words;
  }
  return {text_of(value)};
}

std::string default_text(const Key& key) {
  if (!key.default_from.empty()) return std::string(key.default_from);
  if (key.kind == Kind::kToggle || key.kind == Kind::kTexts) return {};
  const Value value = key.get(Job{});
  return std::holds_alternative<None>(value) ? std::string{} : text_of(value);
}

}  // namespace loom::job
