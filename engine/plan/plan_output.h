// A plan for users (a table on the terminal) and for programs (JSON). The same figures in both.
//
// Units    in the names of JSON keys: _bytes, _ns, _per_s; shares (mfu) are of 1. In text: scaled to the size
//          (engine/core/units.h).
// Text     at most kTextColumns a line (engine/core/wrapped.h). First the planned configuration, then whether it fits
//          and how fast it is, then the tables.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/plan/plan_search.h"

namespace loom::plan {

// The contents of an allocator's pools; a line each, indented by two.
std::string pool_table(const std::vector<device::PoolStats>& pools);
std::string to_text(const StepEstimate& plan);
nlohmann::ordered_json to_json(const StepEstimate& plan);
// Why the step does not fit, and the remedies. Precondition: it does not fit.
std::string out_of_memory_text(const CheckedEstimate& checked);
// Includes out_of_memory_text() if it does not fit.
std::string to_text(const CheckedEstimate& checked);
nlohmann::ordered_json to_json(const CheckedEstimate& checked);
// How many meshes fit, what was pruned, the three best with their reasons, the fastest configurations as a table.
std::string to_text(const Sweep& sweep);
// All of it: {"sweep": [a plan, its "change" and "degrees", ...], "best": [...], "pruned": [...], ...}.
nlohmann::ordered_json to_json(const Sweep& sweep);

}  // namespace loom::plan
