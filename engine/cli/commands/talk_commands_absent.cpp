// LOOM_TALK=OFF.
#include "engine/cli/commands/optional_commands.h"

namespace loom::cli {

std::optional<int> run_talk(const std::any&, std::ostream&) { return std::nullopt; }

}  // namespace loom::cli
