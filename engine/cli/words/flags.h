// Flags: adds typed flags to a command. Private to engine/cli.
//
// The values are read here, so that every refusal has one form: flag, value, allowed values.
//
// Errors   ConfigError from the parse; with a list of refusals, an invalid value becomes a line of that list, and
//          the parse continues.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cli/words/command.h"
#include "engine/job/key.h"
#include "engine/job/read_words.h"

namespace loom::cli {

// A parser takes the word behind a flag as its first value, even if it is the next flag: ConfigError. Only a TEXT may
// begin with dashes.
void check_are_values(const Command& command, const std::string& name, const std::string& type,
                      const std::vector<std::string>& words);

// The number of a flag's values.
constexpr int kAnyNumber = std::numeric_limits<std::int16_t>::max();

class Flags {
 public:
  // `refused`, if given: Command::gather_refusals().
  explicit Flags(Command& command, std::vector<std::string>* refused = nullptr) : command_(command) {
    if (refused != nullptr) command.gather_refusals(*refused);
  }

  // The flags added after this call are printed under this heading; in the short help too if they are common.
  void group(std::string heading, bool common = false) {
    group_ = std::move(heading);
    common_ = common ? group_ : "";
  }

  template <class Integer>
  void whole(const std::string& name, Integer& value, std::int64_t least, const std::string& about,
             const std::string& default_text = {}) {
    add(name, "N", default_text.empty() ? fmt::to_string(value) : default_text, about,
        [=, &value](const std::string& text) { value = job::read_whole<Integer>(first_name(name), text, least); });
  }

  // None unless given.
  void optional_whole(const std::string& name, std::optional<std::int64_t>& value, std::int64_t least,
                      const std::string& about) {
    add(name, "N", "", about,
        [=, &value](const std::string& text) { value = job::read_whole<std::int64_t>(first_name(name), text, least); });
  }

  // `allowed` describes the test of `holds`.
  void real(const std::string& name, double& value, bool (*holds)(double), std::string_view allowed,
            const std::string& about) {
    add(name, "X", fmt::to_string(value), about,
        [=, &value](const std::string& text) { value = job::read_real(first_name(name), text, holds, allowed); });
  }

  void optional_real(const std::string& name, std::optional<double>& value, bool (*holds)(double),
                     std::string_view allowed, const std::string& about) {
    add(name, "X", "", about,
        [=, &value](const std::string& text) { value = job::read_real(first_name(name), text, holds, allowed); });
  }

  template <class Enum>
  void choice(const std::string& name, Enum& value, const std::vector<std::pair<std::string, Enum>>& choices,
              const std::string& about) {
    const auto current = std::ranges::find(choices, value, &std::pair<std::string, Enum>::second);
    std::vector<std::string> words;
    for (const auto& [word, meaning] : choices) words.push_back(word);
    add(name, fmt::format("{{{}}}", fmt::join(words, ",")), current->first, about,
        [=, &value](const std::string& text) {
          const std::string& word = job::read_choice(first_name(name), text, words);
          value = std::ranges::find(choices, word, &std::pair<std::string, Enum>::first)->second;
        });
  }

  // One of `choices` as it is written, or none.
  void optional_choice(const std::string& name, std::optional<std::string>& value,
                       const std::vector<std::string>& choices, const std::string& about) {
    add(name, fmt::format("{{{}}}", fmt::join(choices, ",")), "", about,
        [=, &value](const std::string& text) { value = job::read_choice(first_name(name), text, choices); });
  }

  template <class Text>
  void text(const std::string& name, const std::string& type, Text& value, const std::string& about,
            const std::string& default_text = {}) {
    add(name, type, default_text, about,
        [=, &value](const std::string& given) { value = job::read_text(first_name(name), given); });
  }

  // One or more: texts, or paths.
  template <class Text>
  void texts(const std::string& name, const std::string& type, std::vector<Text>& value, const std::string& about) {
    add_list(name, type, "", about,
             [&value](const std::vector<std::string>& given) { value.assign(given.begin(), given.end()); });
  }

  // One or more, each of several behind commas.
  void parts(const std::string& name, const std::string& type, const std::string& about,
             const std::function<void(const std::vector<std::string>&)>& take);

  // One or more.
  template <class Integer>
  void whole_numbers(const std::string& name, std::vector<Integer>& value, Integer least, const std::string& about) {
    add_list(name, "N", fmt::format("{}", fmt::join(value, " ")), about,
             [name, least, &value](const std::vector<std::string>& given) {
               value = job::read_numbers<Integer>(first_name(name), given, least);
             });
  }

  void toggle(const std::string& name, bool& value, const std::string& about) {
    command_.add_toggle({.names = name, .about = about, .group = group_, .common = common_},
                        [&value](bool on) { value = on; });
  }

  // On, off ("!--no-..."), or not given.
  void optional_toggle(const std::string& name, std::optional<bool>& value, const std::string& about) {
    command_.add_toggle({.names = name, .about = about, .group = group_, .common = common_},
                        [&value](bool on) { value = on; });
  }

  // A flag whose text is passed to a function; for a repeated flag, the last.
  void taken(const std::string& name, const std::string& type, const std::string& about,
             const std::function<void(const std::string&)>& take) {
    add(name, type, "", about, take);
  }

  // Hands over what is given with a flag of `values` values (0 or 1; -1: any number), the last; not shown in the help.
  void noted(const std::string& name, int values, const std::function<void(const std::string& value)>& note);
  // The same of a flag that sets no value.
  void noted(const job::Key& key, const std::function<void(const std::string& value)>& note);
  // The flags of a table that set no value. The lists outlive the parse.
  void without_effect(std::span<const job::Key> table, std::vector<std::string>& refused,
                      std::vector<std::string>& without_effect);

 private:
  static std::string first_name(const std::string& names) { return names.substr(0, names.find(',')); }

  using Take = std::function<void(const std::string&)>;
  using TakeList = std::function<void(const std::vector<std::string>&)>;
  void add(const std::string& name, const std::string& type, const std::string& default_text, const std::string& about,
           const Take& take);
  void add_list(const std::string& name, const std::string& type, const std::string& default_text,
                const std::string& about, const TakeList& take, int most = kAnyNumber);

  Command& command_;
  std::string group_;
  std::string common_;  // the same, if its flags are in the short help
};

}  // namespace loom::cli
