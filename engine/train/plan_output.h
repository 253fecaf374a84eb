// A plan for people (a table on the terminal) and for programs (JSON). The same figures in both.
//
// Units    in the names of JSON keys: _bytes, _ns, _per_s; shares (mfu) are of 1. The table has GiB, ms and percent.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/train/planner.h"

namespace loom::train {

std::string to_text(const StepPlan& plan);
nlohmann::ordered_json to_json(const StepPlan& plan);

}  // namespace loom::train
