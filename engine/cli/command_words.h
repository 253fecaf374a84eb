// The words of a command line: how CLI11 gets them, and what is said of those it could not place.
// Private to engine/cli.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/cli/arguments.h"

namespace loom::cli {

using Apps = std::vector<const CLI::App*>;

// The words of a command line for CLI11 (last one first, without the program), with dashes for underscores in the names
// of known flags: torchrun takes both. Of a flag with several values that is given again, the last values.
std::vector<std::string> reversed_words(std::vector<std::string> words, const Apps& apps);
// The help's text, where the words ask for it. ConfigError for words that do not parse.
std::optional<EarlyExit> parse_words(CLI::App& app, std::vector<std::string> words);
// ConfigError where words are left: unknown flags and those that are refused, all at once; words that belong to no flag
// only where that is all.
void refuse_extras(const CLI::App& app, const std::vector<std::string>& refused);
[[noreturn]] void refuse_command(const std::vector<std::string>& words);

}  // namespace loom::cli
