#include "engine/virtual_time/find_profile.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <vector>

#include "engine/config/share_folder.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/virtual_time/profile_file.h"

namespace loom::virtual_time {
namespace {

namespace fs = std::filesystem;

fs::path profiles_folder() {
  if (const char* folder = std::getenv("SHARDLOOM_DEVICES")) return folder;
  const auto share = config::share_folder();
  if (!share) {
    config_error(
        "no device profiles are installed beside this program; set SHARDLOOM_SHARE to the share/shardloom of an "
        "installation, or give a file");
  }
  return *share / "configs" / "devices";
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(profiles_folder(), none)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

fs::path find_profile_file(const std::string& device, const std::string& flag) {
  std::error_code unreadable;  // a name, or a file that shows it when it is read
  if (fs::exists(device, unreadable)) return device;
  const fs::path path = profiles_folder() / (device + ".yaml");
  if (fs::exists(path, unreadable)) return path;
  const std::vector<std::string> names = profile_names();
  const auto nearest = nearest_spelling(device, names);
  config_error("{} is {}, neither a file nor a profile in {}; {}use one of {}", flag, shown_text(device),
               profiles_folder().string(), nearest ? fmt::format("did you mean {}? ", *nearest) : "",
               fmt::join(names, ", "));
}

virtual_time::HardwareProfile find_profile(const std::string& device, const std::string& flag) {
  return virtual_time::load_profile(find_profile_file(device, flag));
}

}  // namespace loom::virtual_time
