// The one line on flags of launch scripts without effect. Private to engine/cli.
#pragma once

#include <string>
#include <vector>

namespace loom::cli {

// Warns of them, as they were written; nothing for an empty list.
void warn_of_flags(const std::vector<std::string>& without_effect);

}  // namespace loom::cli
