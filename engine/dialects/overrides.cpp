#include "engine/dialects/overrides.h"

#include <algorithm>
#include <fmt/core.h>

#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/translate.h"

namespace loom::dialects {
namespace {

using config::Value;

constexpr std::string_view kPlace = "command line";

std::string joined(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

config::Place place() {
  const config::SourceMark mark{std::string(kPlace)};
  return {mark, mark};
}

// The same value at another place of the tree.
Value moved(const Value& value, const std::string& path, const std::string& key) {
  Value made(value.kind(), path, key, place());
  if (value.is_scalar()) {
    made.set_scalar(value.scalar(),
                    value.is_text() && !value.is_tagged() ? Value::Style::kQuoted : Value::Style::kPlain);
  }
  for (const Value& item : value.items()) {
    made.add(moved(item, value.is_list() ? fmt::format("{}[{}]", path, made.items().size()) : joined(path, item.key()),
                   item.key()));
  }
  return made;
}

Value scalar(const std::string& word, const std::string& path, const std::string& key) {
  if (word == "null" || word == "None") return Value(Value::Kind::kNull, path, key, place());
  if (word.starts_with('{') || word.starts_with('[')) {
    // The reader of JSON takes objects.
    const Value json = config::parse_json(fmt::format("{{\"value\": {}}}", word), fmt::format("{}: {}", kPlace, path));
    return moved(json.items().front(), path, key);
  }
  Value value(Value::Kind::kScalar, path, key, place());
  value.set_scalar(word, Value::Style::kPlain);
  return value;
}

Value value_of(const job::Texts& words, const std::string& path, const std::string& key) {
  if (words.empty()) return scalar("true", path, key);
  if (words.size() == 1) return scalar(words.front(), path, key);
  Value list(Value::Kind::kList, path, key, place());
  for (const std::string& word : words) list.add(scalar(word, fmt::format("{}[{}]", path, list.items().size()), ""));
  return list;
}

// `rest`: what of the dotted key lies below `mapping`.
Value with(const Value& mapping, std::string_view rest, const job::Texts& words) {
  const std::string key(rest.substr(0, rest.find('.')));
  const std::string path = joined(mapping.path(), key);
  const bool is_last = rest.find('.') == std::string_view::npos;
  const Value* old = mapping.find(key);
  const Value nothing(Value::Kind::kMapping, path, key, place());
  const Value fresh =
      is_last ? value_of(words, path, key)
              : with(old != nullptr && old->is_mapping() ? *old : nothing, rest.substr(rest.find('.') + 1), words);
  Value made(Value::Kind::kMapping, mapping.path(), mapping.key(), mapping.place());
  for (const Value& member : mapping.items()) made.add(member.key() == key ? fresh : member);
  if (old == nullptr) made.add(fresh);
  return made;
}

}  // namespace

bool is_override(std::string_view word) {
  if (!word.starts_with("--")) return false;
  const std::string_view name = word.substr(2, word.find('=') - 2);
  return name.find('.') != std::string_view::npos && !name.starts_with('.') && !name.ends_with('.') &&
         name.find("..") == std::string_view::npos;
}

Value with_overrides(const Value& file, const job::Texts& words) {
  Value result = file;
  for (std::size_t i = 0; i < words.size();) {
    if (!is_override(words[i])) config_error("'{}' belongs to no key of the file", shown_text(words[i]));
    const std::string_view word = words[i++];
    const std::size_t equal = word.find('=');
    std::string name(word.substr(2, equal - 2));
    std::ranges::replace(name, '-', '_');
    if (std::ranges::count(name, '.') > 16) config_error("{} has more parts than any key", shown_text(word));
    job::Texts values;
    if (equal != std::string_view::npos) values.emplace_back(word.substr(equal + 1));
    while (i < words.size() && !words[i].starts_with("--")) values.push_back(words[i++]);
    result = with(result, name, values);
  }
  return result;
}

}  // namespace loom::dialects
