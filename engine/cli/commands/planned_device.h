// The device of a plan: the profile that the flags name, with their software, FP8 and --what-if.
//
// Private to engine/cli.
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/virtual_time/profile.h"

namespace loom::cli {

struct PlannedDevice {
  virtual_time::HardwareProfile as_it_is;  // without --what-if
  virtual_time::HardwareProfile profile;
};

// Sets the kernels of `arguments` to those of the software that `given` names. Errors as in plan_software.h and
// plan_fp8.h.
PlannedDevice planned_device(const PlanArguments& given, PlanArguments& arguments);

}  // namespace loom::cli
