// Device profiles by file or by name. A name means a file in configs/devices of the share folder
// (engine/config/share_folder.h); $SHARDLOOM_DEVICES names another folder.
//
// Errors   ConfigError with the names of the existing profiles; the errors of load_profile (profile_file.h).
#pragma once

#include <filesystem>
#include <string>

#include "engine/virtual_time/profile.h"

namespace loom::virtual_time {

// Where a kind of file of ours lies, and its words in messages.
struct ConfigFolder {
  std::string flag;
  std::string folder;    // below configs
  const char* variable;  // of the environment: another folder
  std::string none;      // ", neither a file nor a profile in"
  std::string all;       // "device profiles"
};
std::filesystem::path find_config_file(const std::string& file_or_name, const ConfigFolder& in);

// `flag` is whose value `device` is, for messages.
std::filesystem::path find_profile_file(const std::string& device, const std::string& flag = "--device");
virtual_time::HardwareProfile find_profile(const std::string& device, const std::string& flag = "--device");

}  // namespace loom::virtual_time
