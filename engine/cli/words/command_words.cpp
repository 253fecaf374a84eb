#include "engine/cli/words/command_words.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <span>

#include "engine/cli/words/flags.h"
#include "engine/cli/words/refusals.h"
#include "engine/cli/words/written_flags.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/spelling.h"
#include "engine/job/key.h"

namespace loom::cli {
namespace {

std::vector<std::string> flag_names(const Command& app) {
  std::vector<std::string> names;
  for (const SeenFlag& flag : app.flags()) {
    if (flag.shown && !flag.long_names.empty()) names.push_back("--" + flag.long_names.front());  // not its other names
  }
  return names;
}

// A key of the job that this command does not have.
std::string_view command_of(const std::string& name) {
  const auto key = std::ranges::find(job::keys(), std::string_view(name), &job::Key::name);
  if (key == job::keys().end() || key->in_train == key->in_plan) return {};
  return key->in_train ? "shardloom train" : "shardloom plan";
}

std::string unknown_flag(const Command& app, const std::string& name) {
  if (const auto command = command_of(name); !command.empty() && app.full_name().starts_with("shardloom ")) {
    return fmt::format("{} is a flag of {}, and not of {}; remove it", name, command, app.full_name());
  }
  const auto nearest = nearest_spelling(name, flag_names(app));
  return fmt::format("unknown flag {}; {}", name,
                     nearest ? fmt::format("did you mean {}?", *nearest)
                             : fmt::format("see {} --help{}", app.full_name(), app.has_short_help() ? " all" : ""));
}

bool takes_several(const Apps& apps, const std::string& name) {
  return std::ranges::any_of(apps, [&](const Command* app) { return app->most_values(name) > 1; });
}

// Of a flag with several values that is given again, the last: a parser would take the values of both.
void keep_last_lists(std::vector<std::string>& words, const Apps& apps) {
  for (std::size_t i = 0; i < words.size();) {
    const std::string name = flag_name(words[i]);
    const auto from = words.begin() + static_cast<std::ptrdiff_t>(i);
    const auto again = [&](const std::string& word) { return flag_name(word) == name; };
    if (name.empty() || !takes_several(apps, name) || std::none_of(from + 1, words.end(), again)) {
      ++i;
      continue;
    }
    words.erase(from, std::find_if(from + 1, words.end(), [](const std::string& w) { return w.starts_with("--"); }));
  }
}

// Commands and their other names that a build may leave out, and the option of each.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kOptional{{
    {"generate", "LOOM_TALK"},
    {"chat", "LOOM_TALK"},
    {"preprocess", "LOOM_TEXT"},
    {"preprocess_data", "LOOM_TEXT"},
    {"llava_instruct_2_mllm_demo_format", "LOOM_IMAGES"},
    {"convert", "LOOM_CONVERT"},
    {"mm-convert", "LOOM_CONVERT"},
    {"convert_ckpt", "LOOM_CONVERT"},
    {"convert_ckpt.py", "LOOM_CONVERT"},
    {"convert_ckpt_v2", "LOOM_CONVERT"},
    {"convert_ckpt_v2.py", "LOOM_CONVERT"},
    {"merge", "LOOM_CONVERT"},
    {"inspect", "LOOM_CONVERT"},
}};

// Words that a build with the command takes never get here.
void refuse_left_out(std::string_view word) {
  const auto found = std::ranges::find(kOptional, word, [](const auto& row) { return row.first; });
  if (found == kOptional.end()) return;
  config_error("'{}' is not in this program, which was built with {}=OFF; build it with cmake -D{}=ON", word,
               found->second, found->second);
}

}  // namespace

std::vector<std::string> known_words(std::vector<std::string> words, const Apps& apps) {
  for (std::string& word : words) {
    const std::string name = flag_name(word);
    const auto knows = [&](const Command* app) { return app->has(name); };
    if (word.starts_with("--") && std::ranges::any_of(apps, knows)) word.replace(0, name.size(), name);
  }
  keep_last_lists(words, apps);
  return words;
}

std::optional<EarlyExit> parse_words(Command& app, const std::vector<std::string>& words) {
  const auto printed = app.parse(words);
  if (!printed) return std::nullopt;
  return EarlyExit{printed->code, printed->text};
}

std::vector<std::string> unknown_flags(const Command& app) {
  std::vector<std::string> lines;
  for (const std::string& word : app.remaining()) {
    if (word.size() < 2 || !word.starts_with('-') || parse_number<double>(word)) continue;
    std::string line = unknown_flag(app, word.substr(0, word.find('=')));
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
  }
  return lines;
}

void refuse_stray_words(const Command& app) {
  if (app.remaining().empty()) return;
  config_error("'{}' belongs to no flag; see {} --help", app.remaining().front(), app.full_name());
}

void refuse_extras(const Command& app, const std::vector<std::string>& refused) {
  std::vector<std::string> lines = unknown_flags(app);
  lines.insert(lines.end(), refused.begin(), refused.end());
  Refusals(std::move(lines)).raise();
  refuse_stray_words(app);
}

void refuse_command(const Command& app, const std::vector<std::string>& words) {
  if (!words.empty()) refuse_left_out(words.front());
  std::vector<std::string> commands;
  for (const Command* command : app.commands()) commands.push_back(command->name());
  const std::string all =
      fmt::format("{} or {}", fmt::join(std::span(commands).first(commands.size() - 1), ", "), commands.back());
  if (words.empty()) config_error("no command is given; use shardloom {} (--help lists their flags)", all);
  const auto nearest = nearest_spelling(words.front(), commands);
  config_error("'{}' is not a command; {}", words.front(),
               nearest ? fmt::format("did you mean {}?", *nearest) : fmt::format("use {}", all));
}

}  // namespace loom::cli
