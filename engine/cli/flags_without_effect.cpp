#include "engine/cli/flags_without_effect.h"

#include <fmt/format.h>

#include "engine/core/log.h"

namespace loom::cli {

void warn_of_flags(const std::vector<std::string>& without_effect) {
  if (without_effect.empty()) return;
  log_warning(
      "without effect here: {}; the model is what its configuration says, and nothing is saved or loaded without "
      "--save "
      "and --load",
      fmt::join(without_effect, ", "));
}

}  // namespace loom::cli
