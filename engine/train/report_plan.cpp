#include "engine/train/report_plan.h"

#include <nlohmann/json.hpp>

#include "engine/train/report_configuration.h"
#include "engine/train/report_step.h"

namespace loom::train {

nlohmann::ordered_json plan_report(const StepPlan& plan, const nlohmann::ordered_json& plan_json,
                                   const TrainArguments& arguments, const std::filesystem::path& profile) {
  nlohmann::ordered_json json = plan_json;
  json["report"] = "plan";
  json["memory_over_step"] = memory_over_step_json(*plan.run.timeline, plan.run.times, plan.run.memory);
  json["timeline"] = timeline_json(*plan.run.timeline, plan.run.times);
  json["configuration"] = configuration_json(arguments, {{"--device", profile}});
  return json;
}

}  // namespace loom::train
