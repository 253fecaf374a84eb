// A plan for people (a table on the terminal) and for programs (JSON). The same figures in both.
//
// Units    in the names of JSON keys: _bytes, _ns, _per_s; shares (mfu) are of 1. The table has GiB, ms and percent.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/train/plan_search.h"

namespace loom::train {

std::string to_text(const StepPlan& plan);
nlohmann::ordered_json to_json(const StepPlan& plan);
// With the reason why it does not fit, and the remedies.
std::string to_text(const CheckedPlan& checked);
nlohmann::ordered_json to_json(const CheckedPlan& checked);
// The fastest of a sweep as a table; all of it as JSON, {"sweep": [a plan and its "change", ...]}.
std::string to_text(const std::vector<PlanSearch::Candidate>& sweep);
nlohmann::ordered_json to_json(const std::vector<PlanSearch::Candidate>& sweep);

}  // namespace loom::train
