#include "engine/cli/commands/optional_commands.h"
#include "engine/talk/run_chat.h"
#include "engine/talk/run_generate.h"

namespace loom::cli {

std::optional<int> run_talk(const std::any& arguments, std::ostream& out) {
  if (const auto* chat = std::any_cast<talk::ChatArguments>(&arguments)) {
    talk::run_chat(*chat, out);
  } else if (const auto* generate = std::any_cast<talk::GenerateArguments>(&arguments)) {
    talk::run_generate(*generate, out);
  } else {
    return std::nullopt;
  }
  return 0;
}

}  // namespace loom::cli
