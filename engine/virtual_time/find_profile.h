// Device profiles by file or by name. A name means a file in configs/devices of the share folder
// (engine/config/share_folder.h); $SHARDLOOM_DEVICES names another folder.
//
// Errors   ConfigError with the names of the existing profiles; the errors of load_profile (profile_file.h).
#pragma once

#include <filesystem>
#include <string>

#include "engine/virtual_time/profile.h"

namespace loom::virtual_time {

// `flag` is whose value `device` is, for messages.
std::filesystem::path find_profile_file(const std::string& device, const std::string& flag = "--device");
virtual_time::HardwareProfile find_profile(const std::string& device, const std::string& flag = "--device");

}  // namespace loom::virtual_time
