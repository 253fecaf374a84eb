#include "engine/cli/commands/convert_command.h"
#include "engine/cli/commands/inspect_command.h"
#include "engine/cli/commands/merge_command.h"
#include "engine/cli/commands/optional_commands.h"

namespace loom::cli {

std::optional<int> run_conversion(const std::any& arguments, std::ostream& out) {
  if (const auto* inspected = std::any_cast<InspectArguments>(&arguments)) return run_inspect(*inspected, out);
  if (const auto* conversion = std::any_cast<ConvertArguments>(&arguments)) {
    run_convert(*conversion, out);
  } else if (const auto* merged = std::any_cast<MergeArguments>(&arguments)) {
    run_merge(*merged, out);
  } else {
    return std::nullopt;
  }
  return 0;
}

}  // namespace loom::cli
