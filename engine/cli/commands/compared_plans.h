// `plan ... --compare A B`: plans both and prints them side by side. Private to engine/cli.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

// `a` and `b` are the callbacks of the two jobs of arguments.compared. The exit status: 0 if both fit, else
// kExitDoesNotFit.
int run_compared_plans(const PlanArguments& arguments, const train::PretrainCallbacks& a,
                       const train::PretrainCallbacks& b, std::ostream& out);

}  // namespace loom::cli
