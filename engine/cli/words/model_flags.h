// The model's shape in launch scripts: scripts of Megatron give it as flags, --num-layers 28, beside the configuration
// file that has it. Private to engine/cli.
//
// A flag that says something else than the configuration is an error, before anything is allocated: the script would
// otherwise train another model than it names.
#pragma once

#include "engine/job/job.h"

namespace loom::cli {

// Compares the job's shape flags with its model's configuration, if there is one. ConfigError with every difference:
// flag, its value, the configuration's key, value and line, and what to do. The lines that it returns say what is
// the same in another way.
std::vector<std::string> check_model_flags(const models::ModelOptions& model);

}  // namespace loom::cli
