#include "engine/cli/commands/optional_commands.h"
#include "engine/cli/commands/preprocess_command.h"

namespace loom::cli {

std::optional<int> run_text(const std::any& arguments, std::ostream& out) {
  const auto* preprocessing = std::any_cast<PreprocessArguments>(&arguments);
  if (preprocessing == nullptr) return std::nullopt;
  run_preprocess(*preprocessing, out);
  return 0;
}

}  // namespace loom::cli
