// The planned step as a trace for Perfetto: virtual time, one rank, everything shown (perfetto.h).
#pragma once

#include <string>

#include "engine/train/planner.h"

namespace loom::train {

std::string to_perfetto(const StepPlan& plan);

}  // namespace loom::train
