#include "engine/dialects/reading.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/job/foreign.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::dialects {
namespace {

using config::Value;

constexpr std::int64_t kMostNumber = 1'000'000'000'000;

// "features" of "features.recompute".
std::string_view section_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : key.substr(0, dot);
}
std::string_view name_of(std::string_view key) { return key.substr(key.rfind('.') + 1); }

// The message of a check without the flag that it begins with.
std::string without_flag(const std::string& message, std::string_view flag) {
  return message.starts_with(flag) ? message.substr(flag.size()) : ": " + message;
}

// A number as JSON and YAML write it, quoted or not; pydantic and argparse take both.
bool means(const Value& value, std::string_view text) {
  if (is_absent(value)) return text == "null";
  if (value.is_list()) return value.items().empty() && text == "[]";
  if (value.is_mapping()) return value.items().empty() && text == "{}";
  if (value.scalar() == text) return true;
  const auto one = parse_number<double>(value.scalar()), other = parse_number<double>(text);
  if (one && other) return *one == *other;
  const auto flag = value.boolean();
  return flag && text == (*flag ? "true" : "false");
}

bool is_one_of(const Value& value, const Row& row) {
  if (means(value, row.fallback)) return true;
  for (std::string_view rest = row.words; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (means(value, one)) return true;
  }
  return false;
}

job::Texts scalars_of(const Value& value) {
  job::Texts words;
  if (value.is_scalar()) words.push_back(value.scalar());
  for (const Value& item : value.items()) {
    if (value.is_list() && item.is_scalar()) words.push_back(item.scalar());
  }
  return words;
}

Value renamed(const Value& value, std::string_view text) {
  Value made(Value::Kind::kScalar, value.path(), value.key(), value.place());
  made.set_scalar(std::string(text), Value::Style::kPlain);
  return made;
}

}  // namespace

bool is_absent(const Value& value) {
  return value.is_null() || (value.is_scalar() && !value.is_tagged() && value.scalar() == "None");
}

Value made_value(std::string_view text, std::string_view key, std::string_view place) {
  const config::SourceMark mark{std::string(place)};
  const auto made = [&](Value::Kind kind) {
    return Value(kind, std::string(key), std::string(name_of(key)), {mark, mark});
  };
  if (text == "null") return made(Value::Kind::kNull);
  const bool is_list = text.starts_with('[');
  Value value = made(is_list ? Value::Kind::kList : Value::Kind::kScalar);
  if (!is_list) {
    value.set_scalar(std::string(text), Value::Style::kPlain);
    return value;
  }
  for (std::string_view rest = text.substr(1, text.size() - 2); !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(", "));
    rest.remove_prefix(std::min(rest.size(), one.size() + 2));
    Value item = made(Value::Kind::kScalar);
    item.set_scalar(std::string(one), Value::Style::kPlain);
    value.add(std::move(item));
  }
  return value;
}

std::string yaml_text(std::string_view scalar) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/+";
  const bool plain = !scalar.empty() && scalar.find_first_not_of(kPlain) == std::string_view::npos &&
                     scalar.front() != '-' && scalar.front() != '.';
  if (plain || parse_number<double>(scalar)) return std::string(scalar);
  std::string text = "\"";
  for (const char c : scalar) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else {
      text += c;
    }
  }
  return text + "\"";
}

std::string yaml_text(const job::Texts& items) {
  job::Texts texts;
  for (const std::string& item : items) texts.push_back(yaml_text(item));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

Reading::Reading(const Table& table, const Value& file, const Context& context, Translation& to)
    : table_(table), file_(file), context_(context), to_(to) {
  read_mapping(file_);
  apply_defaults();
}

// --- The file against the rows

const Row* Reading::row_of(std::string_view key) const {
  const auto found = std::ranges::find(table_.rows, key, &Row::key);
  return found == table_.rows.end() ? nullptr : &*found;
}

bool Reading::is_section(std::string_view key) const {
  const std::string prefix = std::string(key) + ".";
  return std::ranges::any_of(table_.rows, [&](const Row& row) { return row.key.starts_with(prefix); });
}

// What the tool's parser takes for one: argparse's of MindSpeed-LLM takes more words than YAML.
std::optional<bool> Reading::boolean_of(const Value& value) const {
  if (table_.dialect != Dialect::kLlm || !value.is_scalar()) return value.boolean();
  const std::string word = lower_case(value.scalar());
  const auto is = [&](std::initializer_list<std::string_view> words) {
    return std::ranges::find(words, word) != words.end();
  };
  if (is({"yes", "true", "t", "y", "1"})) return true;
  if (is({"no", "false", "f", "n", "0"})) return false;
  return std::nullopt;
}

void Reading::read_mapping(const Value& mapping) {
  for (const Value& member : mapping.items()) read_member(member);
}

void Reading::read_member(const Value& member) {
  if (const Row* row = row_of(member.path())) return read_row(*row, member);
  if (is_section(member.path())) {
    if (member.is_mapping()) return read_mapping(member);
    if (is_absent(member)) return;
    to_.refused.push_back(
        fmt::format("{}: {} is {}; write key: value lines below it", member.where(), member.path(), member.shown()));
    return;
  }
  const std::string_view section = section_of(member.path());
  if (const Row* row = row_of(section.empty() ? "*" : std::string(section) + ".*")) return read_row(*row, member);
  refuse_unknown(member);
}

void Reading::read_row(const Row& row, const Value& value) {
  switch (row.act) {
    case Act::kFlag:
      return is_absent(value) ? void() : read_flag(row, value);
    case Act::kFlat:
      if (is_absent(value)) return;
      if (const auto here = value.is_scalar() ? word_here(row, value.scalar()) : std::nullopt;
          here && !row.words.empty()) {
        return here->empty() ? void() : set_key(row.target, renamed(value, *here));
      }
      return set_key(row.target, value);
    case Act::kDerived:
      return;
    case Act::kUnused:
      to_.without_effect.push_back(value.path());
      return;
    case Act::kListed:
      to_.listed.push_back(value.path());
      return;
    case Act::kRefused:
      return read_refused(row, value);
  }
}

void Reading::read_refused(const Row& row, const Value& value) {
  if (is_one_of(value, row)) return;
  to_.refused.push_back(fmt::format("{}: {} is {}; {}", value.where(), value.path(), value.shown(), row.text));
}

void Reading::read_flag(const Row& row, const Value& value) {
  const job::Key& key = *job::find_key(row.target);
  job::Texts words = scalars_of(value);
  if (key.kind == job::Kind::kToggle) {
    const auto on = boolean_of(value);
    if (!on) {
      to_.refused.push_back(fmt::format("{}: {} is {}; use true or false", value.where(), value.path(), value.shown()));
    } else if (*on != row.inverted) {
      set_flag(row.target, {}, value.path());
    }
    return;
  }
  if (!row.words.empty()) {
    const auto here = words.size() == 1 ? word_here(row, words.front()) : std::nullopt;
    if (!here) {
      to_.refused.push_back(
          fmt::format("{}: {} is {}; use {}", value.where(), value.path(), value.shown(), words_there(row)));
      return;
    }
    if (here->empty()) return;
    words = {std::string(*here)};
  }
  if (words.empty()) return;
  try {
    if (key.outcome == job::Outcome::kBuilt) job::read_value(key, words);
    set_flag(row.target, words, value.path());
  } catch (const ConfigError& error) {
    to_.refused.push_back(fmt::format("{}: {}{}", value.where(), value.path(), without_flag(error.what(), key.name())));
  }
}

void Reading::apply_defaults() {
  for (const Row& row : table_.rows) {
    if (given(row.key) != nullptr || row.key.ends_with('*')) continue;
    if (row.required && given(row.key.substr(0, row.key.find('.'))) != nullptr) miss(row.key, "its tool needs it");
    if (row.act != Act::kFlag && row.act != Act::kFlat) continue;
    if (const Value* fallback = value(row.key)) read_row(row, *fallback);
  }
}

void Reading::read_rest(std::string_view section, bool closed) {
  const Value* mapping = given(section);
  if (mapping == nullptr) return;
  for (const Value& member : mapping->items()) {
    if (row_of(member.path()) != nullptr || is_section(member.path())) continue;
    closed ? refuse_unknown(member) : list(member.path());
  }
}

// --- Refusals

std::vector<std::string> Reading::siblings(std::string_view section) const {
  const std::string prefix = section.empty() ? std::string{} : std::string(section) + ".";
  std::vector<std::string> names;
  for (const Row& row : table_.rows) {
    if (!row.key.starts_with(prefix)) continue;
    const std::string_view rest = row.key.substr(prefix.size());
    const std::string name(rest.substr(0, rest.find('.')));
    if (name != "*" && std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

// Where a key of that name is read: first what sets something, then the section of that name, then what is listed.
std::optional<std::string> Reading::place_of(const std::string& name) const {
  const auto sets = [](const Row& row) {
    return row.act == Act::kFlag || row.act == Act::kFlat || row.act == Act::kDerived;
  };
  for (const Row& row : table_.rows) {
    if (sets(row) && name_of(row.key) == name) return std::string(row.key);
  }
  for (const Row& row : table_.rows) {
    const std::size_t at = row.key.find(fmt::format(".{}.", name));
    if (sets(row) && at != std::string_view::npos) return std::string(row.key.substr(0, at + 1 + name.size()));
  }
  for (const Row& row : table_.rows) {
    if (row.act == Act::kListed && name_of(row.key) == name) return std::string(row.key);
  }
  return std::nullopt;
}

void Reading::refuse_unknown(const Value& member) {
  const std::string where = member.place().key.text();
  const std::string_view section = section_of(member.path());
  const auto elsewhere = place_of(member.key());
  if (const auto nearest = nearest_spelling(member.key(), siblings(section))) {
    to_.refused.push_back(fmt::format("{}: unknown key '{}'; did you mean {}{}{}?", where, shown_text(member.path()),
                                      section, section.empty() ? "" : ".", *nearest));
  } else if (elsewhere) {
    to_.refused.push_back(fmt::format("{}: unknown key '{}'; write {}", where, shown_text(member.path()), *elsewhere));
  } else {
    to_.refused.push_back(fmt::format("{}: unknown key '{}'; {} has {}", where, shown_text(member.path()),
                                      section.empty() ? title_of(table_.dialect) : section,
                                      fmt::join(siblings(section), ", ")));
  }
}

void Reading::refuse(std::string_view key, std::string_view advice) {
  const Value* found = value(key);
  to_.refused.push_back(found == nullptr
                            ? fmt::format("{}: {}: {}", file_.place().key.file, key, advice)
                            : fmt::format("{}: {} is {}; {}", found->where(), key, found->shown(), advice));
}

void Reading::miss(std::string_view key, std::string_view advice) {
  to_.missing.push_back(fmt::format("{}{}{}", key, advice.empty() ? "" : ": ", advice));
}

// --- Look-ups

const Value* Reading::given(std::string_view key) const {
  const Value* at = &file_;
  for (std::string_view rest = key; at != nullptr && !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    at = at->find(part);
  }
  return at == nullptr || is_absent(*at) ? nullptr : at;
}

const Value* Reading::value(std::string_view key) {
  if (const Value* found = given(key)) return found;
  const Row* row = row_of(key);
  if (row == nullptr || row->fallback == "null" || row->fallback.empty()) return nullptr;
  const auto [at, fresh] = fallbacks_.try_emplace(std::string(key));
  if (fresh) at->second = made_value(row->fallback, key, fmt::format("default of {}", title_of(table_.dialect)));
  return &at->second;
}

bool Reading::flag(std::string_view key) {
  const Value* found = value(key);
  if (found == nullptr) return false;
  const auto on = boolean_of(*found);
  if (!on) refuse(key, "use true or false");
  return on.value_or(false);
}

std::int64_t Reading::whole(std::string_view key) {
  const Value* found = value(key);
  if (found == nullptr) return 0;
  const auto number = found->is_scalar() ? parse_number<std::int64_t>(found->scalar()) : std::nullopt;
  if (!number || std::abs(*number) > kMostNumber) {
    refuse(key, "use a whole number");
    return 0;
  }
  return *number;
}

double Reading::number(std::string_view key) {
  const Value* found = value(key);
  if (found == nullptr) return 0;
  const auto number = found->is_scalar() ? parse_number<double>(found->scalar()) : std::nullopt;
  if (!number || !std::isfinite(*number)) {
    refuse(key, "use a number");
    return 0;
  }
  return *number;
}

std::string Reading::text(std::string_view key) {
  const Value* found = value(key);
  if (found == nullptr) return {};
  if (!found->is_scalar()) refuse(key, "use a single value");
  return found->scalar();
}

job::Texts Reading::texts(std::string_view key) {
  const Value* found = value(key);
  return found == nullptr ? job::Texts{} : scalars_of(*found);
}

// --- What they come to

std::string Reading::origin_of(std::string_view key) const {
  if (const Value* found = given(key)) return fmt::format("{} {}", found->where(), key);
  return fmt::format("default of {}", title_of(table_.dialect));
}

void Reading::set_flag(std::string_view flag, job::Texts words, std::string_view key) {
  to_.flags.push_back({std::string(flag), std::move(words), origin_of(key)});
}

void Reading::set_flag_from(std::string_view flag, std::string_view key) {
  if (const Value* found = value(key)) read_flag(loom::dialects::flag(key, "null", flag), *found);
}

void Reading::set_key(std::string_view name, const Value& value) { keys_.insert_or_assign(std::string(name), value); }

void Reading::set_key(std::string_view name, std::string text, std::string_view key) {
  const Value* from = value(key);
  if (from == nullptr) return set_key(name, made_value(text, key, file_.place().key.file));
  Value made(Value::Kind::kScalar, from->path(), from->key(), from->place());
  made.set_scalar(std::move(text), Value::Style::kPlain);
  set_key(name, made);
}

config::Value Reading::list_value(std::string path, std::string name, const job::Texts& items, std::string_view key) {
  const Value* from = value(key);
  const config::Place place = from == nullptr ? file_.place() : from->place();
  Value list(Value::Kind::kList, std::move(path), std::move(name), place);
  for (const std::string& text : items) {
    Value item(Value::Kind::kScalar, fmt::format("{}[{}]", list.path(), list.items().size()), "", place);
    item.set_scalar(text, Value::Style::kQuoted);
    list.add(std::move(item));
  }
  return list;
}

void Reading::set_key(std::string_view name, const job::Texts& items, std::string_view key) {
  set_key(name, list_value(std::string(key), std::string(name_of(key)), items, key));
}

void Reading::set_groups(const job::Texts& modules, const job::Texts& together, bool reshard, std::string_view key) {
  Value list = list_value(std::string(key), std::string(name_of(key)), modules, key);
  if (!together.empty()) {
    const std::string path = fmt::format("{}[{}]", key, modules.size());
    Value group(Value::Kind::kMapping, path, "", list.place());
    group.add(list_value(path + ".modules", "modules", together, key));
    Value choice(Value::Kind::kScalar, path + ".reshard_after_forward", "reshard_after_forward", list.place());
    choice.set_scalar(reshard ? "true" : "false", Value::Style::kPlain);
    group.add(std::move(choice));
    list.add(std::move(group));
  }
  set_key("sub_modules_to_wrap", list);
}

int Reading::world() const {
  if (context_.world_given) return context_.world;
  return to_.world.value_or(context_.world);
}

std::optional<std::string> Reading::word_of(std::string_view flag) const {
  if (auto given = context_.flag(flag)) return given;
  const auto found =
      std::find_if(to_.flags.rbegin(), to_.flags.rend(), [&](const Setting& s) { return s.name == flag; });
  if (found == to_.flags.rend()) return std::nullopt;
  return found->words.empty() ? std::string{} : found->words.back();
}

const ModelTree* Reading::model() {
  if (const auto graph = context_.flag("--model-graph"); !model_ && graph && context_.models.load_graph) {
    model_.emplace(context_.models.load_graph(*graph));
  }
  if (!model_) {
    auto path = word_of("--init-from-hf-path");
    if (!path) path = word_of("--model-config");
    model_.emplace(path && context_.models.load ? context_.models.load(model_file(*path)) : std::nullopt);
  }
  return model_->has_value() ? &**model_ : nullptr;
}

void Reading::finish() {
  if (table_.derive != nullptr) table_.derive(*this);
  if (keys_.empty()) return;
  sharding::Fsdp2Config config;
  config.file_name = file_.place().key.file;
  for (const sharding::Fsdp2Key& key : sharding::fsdp2_keys()) {
    const auto found = keys_.find(key.name);
    if (found == keys_.end()) continue;
    try {
      config.places.emplace(key.name, found->second.place());
      key.read(found->second, config);
      const std::string& place = found->second.place().value.file;
      const bool in_file = place == config.file_name || found->second.place().value.line > 0;
      to_.keys.push_back({std::string(key.name),
                          {key.write(config)},
                          in_file ? fmt::format("{} {}", found->second.where(), found->second.path()) : place});
    } catch (const ConfigError& error) {
      to_.refused.emplace_back(error.what());
    }
  }
  to_.config = std::move(config);
}

}  // namespace loom::dialects
