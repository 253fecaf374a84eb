#include "engine/cli/commands/planned_device.h"

#include "engine/cli/plan_profile.h"
#include "engine/plan/plan_fp8.h"
#include "engine/plan/plan_software.h"

namespace loom::cli {

PlannedDevice planned_device(const PlanArguments& given, PlanArguments& arguments) {
  PlannedDevice device{
      .as_it_is = plan::in_fp8(plan::with_software(plan_profile(given.device), given.software, arguments.train.kernels),
                               given.fp8_recipe, given.fp8_param_gather),
      .profile = {}};
  device.profile = virtual_time::scaled(device.as_it_is, given.what_if);
  return device;
}

}  // namespace loom::cli
