// Rules on flags of preprocess that exclude each other, whatever the files hold.
#pragma once

#include "engine/text/preprocess/options.h"

namespace loom::data {

// ConfigError with the flags and the remedy.
void check_options(const PreprocessOptions& options);

}  // namespace loom::data
