// The device profile of a plan, with the buffers of communicators that the environment sets. Private to engine/cli.
//
// Variables  HCCL_BUFFSIZE, in MB, where the device's library is HCCL; NCCL_BUFFSIZE, in bytes, where it is NCCL.
// Errors     ConfigError for a value that is no whole number of the range, and the errors of find_profile().
#pragma once

#include <string>

#include "engine/virtual_time/profile.h"

namespace loom::cli {

virtual_time::HardwareProfile plan_profile(const std::string& device, const std::string& flag = "--device");

}  // namespace loom::cli
