#include "engine/dialects/translate.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/dialects/flags_of_file.h"
#include "engine/dialects/overrides.h"
#include "engine/dialects/reading.h"

namespace loom::dialects {
namespace {

using config::Value;

// Keys without their "fsdp_": transformers takes both.
Value without_prefix(const Value& file) {
  Value made(Value::Kind::kMapping, "", "", file.place());
  for (const Value& member : file.items()) {
    constexpr std::string_view kPrefix = "fsdp_";
    const std::string key = member.key().starts_with(kPrefix) ? member.key().substr(kPrefix.size()) : member.key();
    Value renamed(member.kind(), key, key, member.place());
    if (member.is_scalar()) {
      const bool quoted = !member.is_tagged() && member.shown().starts_with('"');
      renamed.set_scalar(member.scalar(), quoted ? Value::Style::kQuoted : Value::Style::kPlain);
    }
    for (const Value& item : member.items()) renamed.add(item);
    made.add(std::move(renamed));
  }
  return made;
}

// Top-level mappings of anchors, which the file merges elsewhere, are no sections.
Value without_holders(const Value& file, const Table& table) {
  Value made(Value::Kind::kMapping, "", "", file.place());
  for (const Value& member : file.items()) {
    const bool is_known = std::ranges::any_of(
        table.rows, [&](const Row& row) { return row.key == member.key() || row.key.starts_with(member.key() + "."); });
    if (is_known || !member.is_mapping()) made.add(member);
  }
  return made;
}

void read_by(const Table& table, const Value& file, const Context& context, Translation& to) {
  Reading reading(table, file, context, to);
  reading.finish();
}

Translation translate_value(Dialect dialect, const Value& given, const job::Texts& overrides, const Context& context) {
  Translation to;
  to.dialect = dialect;
  to.file = given.place().key.file;
  const Value file = with_overrides(given, overrides);
  switch (dialect) {
    case Dialect::kFlat:
      translate_flat(file, to);
      break;
    case Dialect::kGptArgs:
      translate_gpt_args(file, to);
      break;
    case Dialect::kTransformers:
      read_by(transformers_table(), without_prefix(file), context, to);
      break;
    case Dialect::kNative:
      read_by(native_table(), without_holders(file, native_table()), context, to);
      break;
    default:
      read_by(*table_of(dialect), file, context, to);
  }
  return to;
}

// The words of torchtitan's subcommands: "activation-checkpoint:full".
std::optional<std::string> mode_of(std::string_view word) {
  constexpr std::string_view kWord = "activation-checkpoint:";
  if (!word.starts_with(kWord)) return std::nullopt;
  std::string mode(word.substr(kWord.size()));
  return mode == "memory-budget" ? "memory_budget" : mode;
}

void refuse_toml(std::string_view file_name) {
  if (!file_name.ends_with(".toml")) return;
  config_error(
      "{}: TOML, which torchtitan had until 2025, is not read; give its keys as overrides, such as --training.steps "
      "1000 --parallelism.data_parallel_shard_degree 8",
      escaped(file_name));
}

}  // namespace

Translation translate_text(std::string_view text, std::string_view file_name, const job::Texts& overrides,
                           const Context& context) {
  refuse_toml(file_name);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && text[first] == '{' && !file_name.ends_with(".yaml") &&
                       !file_name.ends_with(".yml");
  const Value file = is_json ? config::parse_json(text, file_name) : config::parse_python_yaml(text, file_name);
  if (file.items().empty()) config_error("{}: the file has no keys", escaped(file_name));
  return translate_value(recognise(file, is_json), file, overrides, context);
}

Translation translate(const std::filesystem::path& file, const job::Texts& overrides, const Context& context) {
  return translate_text(config::read_text(file, "an existing YAML or JSON file"), file.string(), overrides, context);
}

bool is_foreign(std::string_view text, std::string_view file_name) {
  refuse_toml(file_name);
  const Value file = config::parse_python_yaml(text, file_name);  // JSON is YAML
  if (file.items().empty()) return false;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return has_sign(file, text[first] == '{');
}

Translation translate_titan(const job::Texts& words, const Context& context) {
  job::Texts overrides;
  for (const std::string& word : words) {
    if (const auto mode = mode_of(word)) {
      overrides.push_back("--activation_checkpoint.mode=" + *mode);
    } else {
      overrides.push_back(word);
    }
  }
  const config::SourceMark mark{"command line"};
  return translate_value(Dialect::kTorchtitan, Value(Value::Kind::kMapping, "", "", {mark, mark}), overrides, context);
}

void raise_refused(const Translation& translation) { config::refuse_keys(translation.file, translation.refused); }

std::vector<std::string> told_of(const Translation& translation) {
  std::vector<std::string> lines = {fmt::format("{}: {}", escaped(translation.file), title_of(translation.dialect))};
  if (!translation.without_effect.empty()) {
    lines.push_back(fmt::format("without effect here: {}", fmt::join(translation.without_effect, ", ")));
  }
  if (!translation.listed.empty()) {
    lines.push_back(
        fmt::format("of classes and data sets that are not built: {}", fmt::join(translation.listed, ", ")));
  }
  lines.insert(lines.end(), translation.notes.begin(), translation.notes.end());
  return lines;
}

}  // namespace loom::dialects
