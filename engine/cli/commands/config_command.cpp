#include "engine/cli/commands/config_command.h"

#include <algorithm>
#include <fmt/format.h>
#include <iostream>

#include "engine/cli/words/file_words.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/dialects/hub_models.h"
#include "engine/dialects/schema.h"
#include "engine/dialects/write.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

// "--lr 1e-4 --data-path a b" as settings.
std::vector<dialects::Setting> settings_of(const Words& words) {
  std::vector<dialects::Setting> settings;
  for (std::size_t i = 0; i < words.size();) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::ranges::replace(name, '_', '-');
    if (!name.starts_with("--"))
      config_error("'{}' belongs to no flag; see shardloom config --help", shown_text(words[i]));
    const job::Key* key = job::find_key(name);
    if (key == nullptr) key = job::find_key("!" + name);
    if (key == nullptr && name != "--world-size") {
      std::vector<std::string> names;
      for (const job::Key& known : job::keys()) names.emplace_back(known.name());
      const auto nearest = nearest_spelling(name, names);
      config_error("unknown flag {}; {}", name,
                   nearest ? fmt::format("did you mean {}?", *nearest) : "see shardloom train --help all");
    }
    dialects::Setting setting{name, {}, "command line"};
    if (const std::size_t equal = words[i].find('='); equal != std::string::npos) {
      setting.words.push_back(words[i].substr(equal + 1));
    }
    ++i;
    while (i < words.size() && !words[i].starts_with("--")) setting.words.push_back(words[i++]);
    const bool is_toggle = key != nullptr && key->kind == job::Kind::kToggle;
    if (key != nullptr && !is_toggle && setting.words.empty()) config_error("{} needs a value; give it one", name);
    if (key != nullptr) settings.push_back(std::move(setting));
  }
  return settings;
}

// A flag that is given again is in the place of the file's.
void add(std::vector<dialects::Setting>& settings, std::vector<dialects::Setting> given) {
  for (dialects::Setting& setting : given) {
    const job::Key* key = job::find_key(setting.name);
    std::erase_if(settings, [&](const auto& other) { return key != nullptr && job::find_key(other.name) == key; });
    settings.push_back(std::move(setting));
  }
}

std::string rows_text(const std::vector<dialects::Setting>& settings, std::string_view separator) {
  std::size_t width = 0;
  std::vector<std::string> left;
  for (const dialects::Setting& setting : settings) {
    left.push_back(
        fmt::format("{}{}{}", setting.name, setting.words.empty() ? "" : separator, fmt::join(setting.words, " ")));
    width = std::min<std::size_t>(60, std::max(width, left.back().size()));
  }
  std::string text;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    text += fmt::format("  {:{}}  {}\n", escaped(left[i]), width, escaped(settings[i].origin));
  }
  return text;
}

std::string list_text(std::string_view heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  return fmt::format("\n{}\n  {}\n", heading, fmt::join(lines, "\n  "));
}

std::string shown(const dialects::Translation& file, const dialects::Context& context) {
  std::string text = fmt::format("{}: {}\n", escaped(file.file), title_of(file.dialect));
  if (context.world_given || file.world)
    text += fmt::format("ranks: {}\n", file.world && !context.world_given ? *file.world : context.world);
  if (!file.model_class.empty()) {
    text += fmt::format("model: {}{}\n", shown_text(file.model_class), file.model_is_built ? "" : " (not built)");
  }
  if (!file.flags.empty()) text += "\nflags\n" + rows_text(file.flags, " ");
  if (!file.keys.empty()) text += "\nkeys of fsdp2_config.yaml\n" + rows_text(file.keys, ": ");
  text += list_text("without effect here", file.without_effect);
  text += list_text("of classes and data sets that are not built", file.listed);
  text += list_text("missing", file.missing);
  text += list_text("notes", file.notes);
  return text;
}

std::string in_dialect(const dialects::Translation& file, const dialects::Context& context, const std::string& to) {
  const dialects::Resolved resolved = dialects::resolve(file, context);
  const auto dialect = dialects::dialect_of(to);
  const dialects::Written written = dialect ? write(resolved, *dialect, context) : write_flags(resolved);
  if (written.lost.empty()) return written.text;
  const std::string lost = fmt::format("# not said here: {}\n", fmt::join(written.lost, ", "));
  // JSON has no comments.
  if (!written.text.starts_with('{')) return written.text + lost;
  std::cerr << lost;
  return written.text;
}

}  // namespace

int run_config(const ConfigArguments& arguments, std::ostream& out) {
  if (!arguments.schema.empty()) {
    const auto dialect = dialects::dialect_of(arguments.schema);
    if (!dialect) config_error("--schema is {}, which has no file; use a dialect", arguments.schema);
    out << dialects::schema_of(*dialect);
    return 0;
  }
  Words words = arguments.words;
  if (words.empty() || (words.front().starts_with("--") && !dialects::is_override(words.front()))) {
    config_error("no file is given; use shardloom config FILE");
  }
  const bool is_titan = words.front().starts_with("--");
  const std::string path = is_titan ? std::string{} : words.front();
  if (!is_titan) words.erase(words.begin());
  const Words overrides = take_overrides(words);
  const launch::Start alone{.cores = 1};
  const dialects::Context context = context_of(words, Program::kShardloomPlan, alone, dialects::hub_models());
  dialects::Translation file =
      is_titan ? dialects::translate_titan(overrides, context) : dialects::translate(path, overrides, context);
  try {
    dialects::raise_refused(file);
  } catch (const ConfigError& error) {
    out << shown_message(error.what()) << "\n";
    return 1;
  }
  add(file.flags, settings_of(words));
  out << (arguments.to.empty() ? shown(file, context) : in_dialect(file, context, arguments.to));
  return 0;
}

}  // namespace loom::cli
