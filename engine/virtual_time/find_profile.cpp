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

fs::path folder_of(const ConfigFolder& in) {
  if (const char* folder = std::getenv(in.variable)) return folder;
  const auto share = config::share_folder();
  if (!share) {
    config_error(
        "no {} are installed beside this program; set SHARDLOOM_SHARE to the share/shardloom of an installation, or "
        "give a file",
        in.all);
  }
  return *share / "configs" / in.folder;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

fs::path find_config_file(const std::string& file_or_name, const ConfigFolder& in) {
  std::error_code unreadable;  // a name, or a file that shows it when it is read
  if (fs::exists(file_or_name, unreadable)) return file_or_name;
  const fs::path folder = folder_of(in);
  const fs::path path = folder / (file_or_name + ".yaml");
  if (fs::exists(path, unreadable)) return path;
  const std::vector<std::string> names = names_in(folder);
  const auto nearest = nearest_spelling(file_or_name, names);
  config_error("{} is {}{} {}; {}use one of {}", in.flag, shown_text(file_or_name), in.none, folder.string(),
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(names, ", "));
}

fs::path find_profile_file(const std::string& device, const std::string& flag) {
  return find_config_file(device, {.flag = flag,
                                   .folder = "devices",
                                   .variable = "SHARDLOOM_DEVICES",
                                   .none = ", neither a file nor a profile in",
                                   .all = "device profiles"});
}

virtual_time::HardwareProfile find_profile(const std::string& device, const std::string& flag) {
  return virtual_time::load_profile(find_profile_file(device, flag));
}

}  // namespace loom::virtual_time
