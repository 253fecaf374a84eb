// Parsing of a command line's words, and the refusals of words that belong to no flag.
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
// of known flags: torchrun accepts both. If a flag with several values is given again, the last values count.
std::vector<std::string> known_words(std::vector<std::string> words, const Apps& apps);
// The help's text, if the words request it. ConfigError for words that do not parse.
std::optional<EarlyExit> parse_words(Command& app, const std::vector<std::string>& words);
// The messages on unknown flags among the remaining words, a line each.
std::vector<std::string> unknown_flags(const Command& app);
// ConfigError if a remaining word is not a flag.
void refuse_stray_words(const Command& app);
// ConfigError if words remain: unknown and refused flags, all at once; words that belong to no flag
// only if there are no others.
void refuse_extras(const Command& app, const std::vector<std::string>& refused);
// ConfigError: no command, or a word that is none of `app`. A command that this build leaves out is named with its
// option.
[[noreturn]] void refuse_command(const Command& app, const std::vector<std::string>& words);

}  // namespace loom::cli
