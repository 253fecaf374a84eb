// The planned step as a trace for Perfetto: virtual time, one rank, everything shown (perfetto.h).
#pragma once

#include <string>

#include "engine/plan/planner.h"

namespace loom::plan {

std::string to_perfetto(const StepEstimate& plan);

}  // namespace loom::plan
