// What flags of preprocess do not go together, by themselves: no file is looked at. Private to engine/data and engine/cli.
#pragma once

#include "engine/data/preprocess/options.h"

namespace loom::data {

// ConfigError with the flags and what to write instead.
void check_options(const PreprocessOptions& options);

}  // namespace loom::data
