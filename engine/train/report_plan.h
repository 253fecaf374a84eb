// The data of a plan's report: that of `shardloom plan --json`, and beside it "report": "plan", "timeline",
// "memory_over_step" (report_step.h) and "configuration" (report_configuration.h).
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "engine/train/arguments.h"
#include "engine/train/planner.h"

namespace loom::train {

// `profile`: the device profile's file.
nlohmann::ordered_json plan_report(const StepPlan& plan, const nlohmann::ordered_json& plan_json,
                                   const TrainArguments& arguments, const std::filesystem::path& profile);

}  // namespace loom::train
