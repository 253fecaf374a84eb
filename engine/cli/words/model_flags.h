// Checks the flags of launch scripts that describe the model against its configuration. Private to engine/cli.
//
// The configuration defines the model. A flag with the same value is accepted; one with another value is refused,
// since the run would not be the intended one.
//
// Errors   ConfigError that names each such flag with both values and the value's place in the configuration.
#pragma once

#include "engine/cli/words/arguments.h"

namespace loom::cli {

// Reads the configuration if such flags are given. Flags without a value in the configuration are not compared, nor
// those of a program's own model without a configuration.
void check_model_flags(const models::ModelOptions& model_options, const job::WrittenFlags& written);

}  // namespace loom::cli
