// What the commands do that a build may leave out (engine/cli/words/optional_words.h). Private to engine/cli.
#pragma once

#include <any>
#include <optional>
#include <ostream>

namespace loom::cli {

// The exit status; none where `arguments` are those of other commands, or the build leaves these out
// (*_commands_absent.cpp).
std::optional<int> run_talk(const std::any& arguments, std::ostream& out);
std::optional<int> run_text(const std::any& arguments, std::ostream& out);
std::optional<int> run_multimodal(const std::any& arguments, std::ostream& out);
std::optional<int> run_conversion(const std::any& arguments, std::ostream& out);

}  // namespace loom::cli
