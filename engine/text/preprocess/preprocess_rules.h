// Which flags of preprocess do not go together, whatever the files hold.
#pragma once

#include "engine/text/preprocess/options.h"

namespace loom::data {

// ConfigError with the flags and what to write instead.
void check_options(const PreprocessOptions& options);

}  // namespace loom::data
