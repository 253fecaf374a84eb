#include "engine/cli/words/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/core.h>
#include <limits>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "engine/core/error.h"

namespace loom::cli {
namespace {

constexpr std::size_t kHelpColumn = 36;  // where a flag's description begins
constexpr std::size_t kHelpWidth = 100;

// A flag or a command, and its description behind it or below.
std::string help_lines(const std::string& name, const std::string& about) {
  std::string text = "  " + name, line = text;
  if (line.size() + 2 > kHelpColumn) line = std::string(kHelpWidth, ' ');  // the description begins below
  std::istringstream words(about);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    const bool fits = line.size() + 1 + word.size() <= kHelpWidth;
    if (!fits) text += '\n', line.clear();
    const std::size_t column = first || !fits ? kHelpColumn : line.size() + 1;
    text.append(column - line.size(), ' ').append(word);
    line.append(column - line.size(), ' ').append(word);
  }
  return text + "\n";
}

// Flags of the short help, with the heading of each.
using CommonFlags = std::vector<std::pair<std::string, const CLI::Option*>>;

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter(const CommonFlags& common, const bool& all) : common_(common), all_(all) {}

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (all_ || common_.empty()) return Formatter::make_help(app, std::move(name), mode);
    std::string text = make_description(app) + make_usage(app, name), heading;
    for (const auto& [group, option] : common_) {
      if (group != heading) text += fmt::format("\n{}:\n", heading = group);
      text += make_option(option, false);
    }
    return text + fmt::format("\nAll flags: {} --help all\n", name) + make_footer(app);
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return help_lines(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* app) const override {
    return help_lines(app->get_display_name(true), app->get_description());
  }

 private:
  const CommonFlags& common_;
  const bool& all_;
};

// Whether "all" follows the flag of the help.
bool asks_for_all(const std::vector<std::string>& words) {
  const auto is_help = [](const std::string& word, const std::string& next) {
    return (word == "--help" || word == "-h") && next == "all";
  };
  return std::ranges::adjacent_find(words, is_help) != words.end();
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

SeenFlag seen(const CLI::Option& option) {
  return {.name = option.get_name(),
          .long_names = option.get_lnames(),
          .type = option.get_type_name(),
          .about = option.get_description(),
          .shown = !option.get_group().empty(),
          .most = option.get_items_expected_max(),
          .values = option.results(),
          .given = option.count() > 0};
}

}  // namespace

// An App whose options know each other by a set of names: CLI11 compares a new option with every earlier one, which
// takes most of the start of a command with hundreds of flags.
class FlagTable final : public CLI::App {
 public:
  FlagTable(const std::string& about, const std::string& name) : CLI::App(about, name) { keep_names(*options_.back()); }

  // `add` adds one option to this App. CLI::OptionAlreadyAdded for a name that an earlier one has.
  template <typename Add>
  CLI::Option* add(const Add& add) {
    std::vector<CLI::Option_p> earlier = std::exchange(options_, {});
    CLI::Option* option = nullptr;
    try {
      option = add();
      keep_names(*option);
    } catch (...) {
      options_ = std::move(earlier);
      throw;
    }
    earlier.push_back(std::move(options_.back()));
    options_ = std::move(earlier);
    return option;
  }

  void remove(CLI::Option* option) {
    for (const std::string& name : names_of(*option)) names_.erase(name);
    remove_option(option);
  }

  bool has(const std::string& name) const { return names_.contains(name); }

 private:
  static std::vector<std::string> names_of(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
    if (names.empty()) names.push_back(option.get_name());
    return names;
  }

  void keep_names(const CLI::Option& option) {
    const std::vector<std::string> names = names_of(option);
    for (const std::string& name : names) {
      if (names_.contains(name)) throw CLI::OptionAlreadyAdded("added option matched existing option name: " + name);
    }
    names_.insert(names.begin(), names.end());
  }

  std::set<std::string> names_;
};

struct Command::Parser {
  Parser(std::shared_ptr<FlagTable> table, std::shared_ptr<bool> all)
      : own(std::move(table)), app(*own), all_flags(std::move(all)) {
    app.formatter(std::make_shared<HelpFormatter>(common, *all_flags));
    app.allow_extras();
  }

  const std::shared_ptr<FlagTable> own;
  FlagTable& app;
  CommonFlags common;
  std::shared_ptr<bool> all_flags;  // whether the help shows all; of all commands
};

Command::Command(const std::string& about, const std::string& name) : name_(name) {
  parser_ = std::make_unique<Parser>(std::make_shared<FlagTable>(about, name), std::make_shared<bool>(false));
}

Command::Command(std::unique_ptr<Parser> parser, const Command* parent)
    : parser_(std::move(parser)), parent_(parent), name_(parser_->app.get_name()) {}

Command::~Command() = default;

Command& Command::add_command(const std::string& name, const std::string& about) {
  const auto table = std::make_shared<FlagTable>(about, name);
  parser_->app.add_subcommand(table);
  below_.push_back(std::unique_ptr<Command>(new Command(std::make_unique<Parser>(table, parser_->all_flags), this)));
  return *below_.back();
}

void Command::add(const NewFlag& flag) {
  try {
    add_option(flag);
  } catch (const CLI::ConstructionError& error) {
    throw std::invalid_argument(error.what());
  }
}

void Command::add_option(const NewFlag& flag) {
  const auto take = [this, take = flag.take](const std::vector<std::string>& values) {
    try {
      take(values);
    } catch (const ConfigError& error) {
      if (refused_ == nullptr) throw;
      refused_->emplace_back(error.what());
    }
    return true;
  };
  CLI::Option* option = parser_->app.add([&] { return parser_->app.add_option(flag.names, take, flag.about); });
  option->type_name(flag.type)->default_str(flag.default_text)->group(flag.group);
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (flag.least == flag.most)
    option->expected(flag.least);
  else
    option->expected(flag.least, flag.most);
  if (!flag.names.starts_with('-')) option->allow_extra_args(flag.most > 1);
  if (!flag.common.empty()) parser_->common.emplace_back(flag.common, option);
}

void Command::add_toggle(const NewFlag& flag, const std::function<void(bool)>& take) {
  try {
    const auto count_up = [take](std::int64_t count) { take(count > 0); };
    CLI::Option* option =
        parser_->app.add([&] { return parser_->app.add_flag_function(flag.names, count_up, flag.about); });
    option->disable_flag_override()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->group(flag.group);
    if (!flag.common.empty()) parser_->common.emplace_back(flag.common, option);
  } catch (const CLI::ConstructionError& error) {
    throw std::invalid_argument(error.what());
  }
}

void Command::remove_hidden(const std::string& name) {
  CLI::Option* option = parser_->app.get_option_no_throw(name);
  if (option != nullptr && option->get_group().empty()) parser_->app.remove(option);
}

void Command::set_footer(const std::string& text) { parser_->app.footer(text); }
void Command::set_version(const std::string& text, const std::string& about) {
  parser_->app.set_version_flag("--version", text, about);
}

std::string Command::full_name() const { return parent_ == nullptr ? name_ : parent_->full_name() + " " + name_; }

std::string Command::about() const { return parser_->app.get_description(); }

std::vector<const Command*> Command::commands() const {
  std::vector<const Command*> commands;
  for (const auto& command : below_) commands.push_back(command.get());
  return commands;
}

bool Command::has(const std::string& flag) const { return parser_->app.has(flag); }

bool Command::has_short_help() const { return !parser_->common.empty(); }

int Command::most_values(const std::string& flag) const {
  const CLI::Option* option = parser_->app.get_option_no_throw(flag);
  return option == nullptr ? 0 : option->get_items_expected_max();
}

std::vector<SeenFlag> Command::flags() const {
  std::vector<SeenFlag> flags;
  for (const CLI::Option* option : parser_->app.get_options()) flags.push_back(seen(*option));
  return flags;
}

std::optional<Command::Printed> Command::parse(const std::vector<std::string>& words) {
  *parser_->all_flags = asks_for_all(words);
  try {
    parser_->app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    const int code = parser_->app.exit(help, text, text);
    return Printed{code, text.str()};
  } catch (const CLI::ParseError& error) {
    refuse_parse(error);
  }
  return std::nullopt;
}

bool Command::parsed() const { return parser_->app.parsed(); }

bool Command::given(const std::string& flag) const {
  const CLI::Option* option = parser_->app.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

std::string Command::text_of(const std::string& flag) const {
  const CLI::Option* option = parser_->app.get_option(flag);
  return option->results().empty() ? option->get_default_str() : option->results().back();
}

std::vector<std::string> Command::remaining() const { return parser_->app.remaining(); }

const Command* Command::chosen() const {
  const auto found = std::ranges::find_if(below_, [](const auto& command) { return command->parsed(); });
  return found == below_.end() ? nullptr : found->get();
}

}  // namespace loom::cli
