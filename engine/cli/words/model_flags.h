// The flags of launch scripts that describe the model, against its configuration. Private to engine/cli.
//
// The model is what its configuration says. A flag that says the same is taken; one that says otherwise is refused,
// since the run would not be the one that was asked for.
//
// Errors   ConfigError that names each such flag with both values and the place of the configuration's.
#pragma once

#include "engine/cli/words/arguments.h"

namespace loom::cli {

// Reads the configuration where such flags are given. What the configuration does not say is not compared, and neither
// is a program's own model that has none.
void check_model_flags(const models::ModelOptions& model_options, const job::WrittenFlags& written);

}  // namespace loom::cli
