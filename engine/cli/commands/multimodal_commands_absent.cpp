// LOOM_IMAGES=OFF.
#include "engine/cli/commands/optional_commands.h"

namespace loom::cli {

std::optional<int> run_multimodal(const std::any&, std::ostream&) { return std::nullopt; }

}  // namespace loom::cli
