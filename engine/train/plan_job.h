// The plan command: a plan of the step, printed, and written as asked.
//
// Devices   --device is a profile's file, or the name of one in configs/devices (of the source tree or the installed
//           package; $SHARDLOOM_DEVICES names another folder).
// Errors    ConfigError for the user's input, with the names of the profiles there are.
#pragma once

#include <filesystem>
#include <ostream>
#include <string>

#include "engine/device/profile.h"
#include "engine/train/arguments.h"

namespace loom::train {

inline constexpr int kExitDoesNotFit = 3;

// The exit status: 0, or kExitDoesNotFit.
int run_plan(const PlanArguments& arguments, std::ostream& out);

// By file or name.
std::filesystem::path find_profile_file(const std::string& device);
device::HardwareProfile find_profile(const std::string& device);

}  // namespace loom::train
