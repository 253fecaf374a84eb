// The words of a command line: how a command gets them, and the refusals of words that belong to no flag.
// Private to engine/cli.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command.h"

namespace loom::cli {

using Apps = std::vector<const Command*>;

// The words of a command line (without the program), with dashes for underscores in the names
// of known flags: torchrun takes both. Of a flag with several values that is given again, the last values.
std::vector<std::string> known_words(std::vector<std::string> words, const Apps& apps);
// The help's text, where the words ask for it. ConfigError for words that do not parse.
std::optional<EarlyExit> parse_words(Command& app, const std::vector<std::string>& words);
// What there is to say of the unknown flags among the words that are left, a line each.
std::vector<std::string> unknown_flags(const Command& app);
// ConfigError where a word is left that is no flag.
void refuse_stray_words(const Command& app);
// ConfigError where words are left: unknown flags and those that are refused, all at once; words that belong to no flag
// only where that is all.
void refuse_extras(const Command& app, const std::vector<std::string>& refused);
[[noreturn]] void refuse_command(const std::vector<std::string>& words);

}  // namespace loom::cli
