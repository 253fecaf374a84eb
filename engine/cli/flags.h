// Flags: one command's flags, on CLI11. Private to engine/cli.
//
// CLI11 splits the command line and prints the help; the values are read here so that every refusal has one form:
// flag, value, what is allowed.
//
// Errors   ConfigError from the parse.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::cli {

template <class Number>
std::optional<Number> parse_number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Whether the command line has the flag; false also for a flag that the command has not.
inline bool given(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(app) {}

  // The flags added from here on are printed under this heading.
  void group(std::string heading) { group_ = std::move(heading); }

  template <class Integer>
  void whole(const std::string& name, Integer& value, std::int64_t least, const std::string& about,
             const std::string& default_text = {}) {
    add(name, "N", default_text.empty() ? fmt::to_string(value) : default_text, about,
        [=, &value](const std::string& text) {
          const auto number = parse_number<Integer>(text);
          if (!number || std::cmp_less(*number, least)) {
            config_error("{} is {}; use a whole number of at least {}", first_name(name), shown_text(text), least);
          }
          value = *number;
        });
  }

  // None unless it is given.
  void optional_whole(const std::string& name, std::optional<std::int64_t>& value, std::int64_t least,
                      const std::string& about) {
    add(name, "N", "", about, [=, &value](const std::string& text) {
      const auto number = parse_number<std::int64_t>(text);
      if (!number || *number < least) {
        config_error("{} is {}; use a whole number of at least {}", name, shown_text(text), least);
      }
      value = *number;
    });
  }

  // `allowed` says in words what `holds` tests.
  void real(const std::string& name, double& value, bool (*holds)(double), std::string_view allowed,
            const std::string& about) {
    add(name, "X", fmt::to_string(value), about, [=, &value](const std::string& text) {
      const auto number = parse_number<double>(text);
      if (!number || !std::isfinite(*number) || !holds(*number))
        config_error("{} is {}; use {}", name, shown_text(text), allowed);
      value = *number;
    });
  }

  void optional_real(const std::string& name, std::optional<double>& value, bool (*holds)(double),
                     std::string_view allowed, const std::string& about) {
    add(name, "X", "", about, [=, &value](const std::string& text) {
      const auto number = parse_number<double>(text);
      if (!number || !std::isfinite(*number) || !holds(*number))
        config_error("{} is {}; use {}", name, shown_text(text), allowed);
      value = *number;
    });
  }

  template <class Enum>
  void choice(const std::string& name, Enum& value, const std::vector<std::pair<std::string, Enum>>& choices,
              const std::string& about) {
    const auto current = std::ranges::find(choices, value, &std::pair<std::string, Enum>::second);
    std::vector<std::string> words;
    for (const auto& [word, meaning] : choices) words.push_back(word);
    add(name, fmt::format("{{{}}}", fmt::join(words, ",")), current->first, about,
        [=, &value](const std::string& text) {
          const auto chosen = std::ranges::find(choices, text, &std::pair<std::string, Enum>::first);
          if (chosen == choices.end()) refuse_choice(name, text, words);
          value = chosen->second;
        });
  }

  // One of `choices` as it is written, or none.
  void optional_choice(const std::string& name, std::optional<std::string>& value,
                       const std::vector<std::string>& choices, const std::string& about) {
    add(name, fmt::format("{{{}}}", fmt::join(choices, ",")), "", about, [=, &value](const std::string& text) {
      if (std::ranges::find(choices, text) == choices.end()) refuse_choice(name, text, choices);
      value = text;
    });
  }

  template <class Text>
  CLI::Option* text(const std::string& name, const std::string& type, Text& value, const std::string& about,
                    const std::string& default_text = {}) {
    return add(name, type, default_text, about, [=, &value](const std::string& given) {
      if (given.empty()) config_error("{} is empty; give it a value or leave it out", name);
      value = given;
    });
  }

  // One or more: texts, or paths.
  template <class Text>
  void texts(const std::string& name, const std::string& type, std::vector<Text>& value, const std::string& about) {
    const auto take = [name, type, &value, &app = app_](const std::vector<std::string>& given) {
      for (const std::string& word : given) check_is_value(app, name, type, word);
      value.assign(given.begin(), given.end());
      return true;
    };
    app_.add_option(name, take, about)
        ->type_name(type)
        ->expected(1, std::numeric_limits<std::int16_t>::max())
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(group_);
  }

  // One or more.
  template <class Integer>
  void whole_numbers(const std::string& name, std::vector<Integer>& value, Integer least, const std::string& about) {
    const auto take = [name, least, &value, &app = app_](const std::vector<std::string>& given) {
      std::vector<Integer> numbers;
      for (const std::string& word : given) {
        check_is_value(app, name, "N", word);
        const auto number = parse_number<Integer>(word);
        if (!number || *number < least) {
          config_error("{} is {}; use whole numbers of at least {}", name, shown_text(word), least);
        }
        numbers.push_back(*number);
      }
      value = std::move(numbers);
      return true;
    };
    app_.add_option(name, take, about)
        ->type_name("N")
        ->default_str(fmt::format("{}", fmt::join(value, " ")))
        ->expected(1, std::numeric_limits<std::int16_t>::max())
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(group_);
  }

  void toggle(const std::string& name, bool& value, const std::string& about) {
    app_.add_flag(name, value, about)->disable_flag_override()->group(group_);
  }

  // On, off ("!--no-..."), or not given.
  void optional_toggle(const std::string& name, std::optional<bool>& value, const std::string& about) {
    app_.add_flag_function(
            name, [&value](std::int64_t count) { value = count > 0; }, about)
        ->disable_flag_override()
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(group_);
  }

  // Hands over what is given with a flag of `values` values (0 or 1); not shown in the help.
  void noted(const std::string& name, int values, const std::function<void(const std::string& value)>& note) {
    const auto take = [note](const std::vector<std::string>& given) {
      note(given.empty() ? "" : given.back());
      return true;
    };
    app_.add_option(name, take)->expected(values)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->group("");
  }

 private:
  static std::string first_name(const std::string& names) { return names.substr(0, names.find(',')); }

  [[noreturn]] static void refuse_choice(const std::string& name, const std::string& text,
                                         const std::vector<std::string>& words) {
    const auto nearest = nearest_spelling(text, words);
    config_error("{} is {}; use {}{}", first_name(name), shown_text(text), fmt::join(words, ", "),
                 nearest ? fmt::format(" (did you mean {}?)", *nearest) : "");
  }

  // CLI11 takes a flag's first value as it comes, even when it is the next flag. Only a TEXT may begin with dashes.
  static void check_is_value(const CLI::App& app, const std::string& name, const std::string& type,
                             const std::string& word) {
    const bool flag = type == "TEXT" ? app.get_option_no_throw(word) != nullptr : word.starts_with("--");
    if (flag)
      config_error("{} needs a value, but {} follows; give {} {}", first_name(name), word, first_name(name), type);
  }

  template <class Take>
  CLI::Option* add(const std::string& name, const std::string& type, const std::string& default_text,
                   const std::string& about, Take take) {
    return app_
        .add_option(
            name,
            [name, type, take, &app = app_](const std::vector<std::string>& given) {
              for (const std::string& word : given) check_is_value(app, name, type, word);
              take(given.back());  // of a repeated flag the last, as with argparse
              return true;
            },
            about)
        ->type_name(type)
        ->default_str(default_text)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(group_);
  }

  CLI::App& app_;
  std::string group_;
};

}  // namespace loom::cli
