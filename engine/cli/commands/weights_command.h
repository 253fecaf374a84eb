// `plan --model-weights DIR`: a step from the headers of safetensors files (engine/plan/weights_plan.h).
//
// Returns  0, or kExitDoesNotFit where static memory alone does not fit.
// Errors   ConfigError for searches and outputs that need activations or the time of a step.
//
// Private to engine/cli.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

int run_weights(const PlanArguments& arguments, std::ostream& out);

}  // namespace loom::cli
