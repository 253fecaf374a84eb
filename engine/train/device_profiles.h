// Device profiles by name.
//
// Folder   configs/devices of the source tree or the installed package; $SHARDLOOM_DEVICES names another one.
// Errors   ConfigError with the names of the profiles there are.
#pragma once

#include <string>
#include <string_view>

#include "engine/device/profile.h"

namespace loom::train {

// By file or name. `flag` gave it.
device::HardwareProfile find_profile(const std::string& device, std::string_view flag = "--device");

}  // namespace loom::train
