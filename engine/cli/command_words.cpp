#include "engine/cli/command_words.h"

#include <algorithm>
#include <span>
#include <sstream>

#include "engine/cli/flags.h"

namespace loom::cli {
namespace {

// "shardloom train", or a program's own name.
std::string command_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : command_name(*parent) + " " + app.get_name();
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;                                                // not for users
    if (!option->get_lnames().empty()) names.push_back("--" + option->get_lnames().front());  // not its other names
  }
  return names;
}

std::string unknown_flag(const CLI::App& app, const std::string& name) {
  const auto nearest = nearest_spelling(name, flag_names(app));
  return fmt::format(
      "unknown flag {}; {}", name,
      nearest ? fmt::format("did you mean {}?", *nearest) : fmt::format("see {} --help", command_name(app)));
}

// CLI11's own refusals: a flag without its value, a flag with one it does not take.
[[noreturn]] void refuse_parse(const CLI::ParseError& error) {
  const std::string text = error.what();
  if (const auto colon = text.find(": "); text.ends_with(" missing") && colon != std::string::npos) {
    config_error("{} needs a value, but nothing follows; see --help", text.substr(0, colon));
  }
  if (const auto flag = text.find(" was given a disallowed flag override"); flag != std::string::npos) {
    config_error("--{} takes no value; give it alone", text.substr(0, flag));
  }
  config_error("{}; see --help", text);
}

// "--data_path=d" and "--data-path=d" are of "--data-path".
std::string flag_name(std::string_view word) {
  std::string name(word.substr(0, word.find('=')));
  std::ranges::replace(name, '_', '-');
  return name;
}

bool takes_several(const Apps& apps, const std::string& name) {
  return std::ranges::any_of(apps, [&](const CLI::App* app) {
    const CLI::Option* option = app->get_option_no_throw(name);
    return option != nullptr && option->get_expected_max() > 1;
  });
}

// Of a flag with several values that is given again, the last: CLI11 would take the values of both.
void keep_last_lists(std::vector<std::string>& words, const Apps& apps) {
  for (std::size_t i = 0; i < words.size();) {
    const std::string name = words[i].starts_with("--") ? flag_name(words[i]) : std::string{};
    const auto from = words.begin() + static_cast<std::ptrdiff_t>(i);
    const auto again = [&](const std::string& word) { return word.starts_with("--") && flag_name(word) == name; };
    if (name.empty() || !takes_several(apps, name) || std::none_of(from + 1, words.end(), again)) {
      ++i;
      continue;
    }
    words.erase(from, std::find_if(from + 1, words.end(), [](const std::string& w) { return w.starts_with("--"); }));
  }
}

}  // namespace

std::vector<std::string> reversed_words(std::vector<std::string> words, const Apps& apps) {
  for (std::string& word : words) {
    const std::string name = flag_name(word);
    const auto knows = [&](const CLI::App* app) { return app->get_option_no_throw(name) != nullptr; };
    if (word.starts_with("--") && std::ranges::any_of(apps, knows)) word.replace(0, name.size(), name);
  }
  keep_last_lists(words, apps);
  std::ranges::reverse(words);
  return words;
}

std::optional<EarlyExit> parse_words(CLI::App& app, std::vector<std::string> words) {
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    const int code = app.exit(help, text, text);
    return EarlyExit{code, text.str()};
  } catch (const CLI::ParseError& error) {
    refuse_parse(error);
  }
  return std::nullopt;
}

void refuse_extras(const CLI::App& app, const std::vector<std::string>& refused) {
  std::vector<std::string> lines;
  const std::vector<std::string> extras = app.remaining();
  for (const std::string& word : extras) {
    if (word.size() < 2 || !word.starts_with('-') || parse_number<double>(word)) continue;
    std::string line = unknown_flag(app, word.substr(0, word.find('=')));
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
  }
  lines.insert(lines.end(), refused.begin(), refused.end());
  if (lines.size() == 1) config_error("{}", lines.front());
  if (!lines.empty()) config_error("{} flags are not taken:\n  {}", lines.size(), fmt::join(lines, "\n  "));
  if (!extras.empty()) config_error("'{}' belongs to no flag; see {} --help", extras.front(), command_name(app));
}

void refuse_command(const std::vector<std::string>& words) {
  const std::vector<std::string> commands = {"train",   "plan",    "generate", "chat",   "preprocess",
                                             "compare", "convert", "merge",    "inspect"};
  const std::string all =
      fmt::format("{} or {}", fmt::join(std::span(commands).first(commands.size() - 1), ", "), commands.back());
  if (words.empty()) config_error("no command is given; use shardloom {} (--help lists their flags)", all);
  const auto nearest = nearest_spelling(words.front(), commands);
  config_error("'{}' is not a command; {}", words.front(),
               nearest ? fmt::format("did you mean {}?", *nearest) : fmt::format("use {}", all));
}

}  // namespace loom::cli
