#include "engine/config/share_folder.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/spelling.h"

namespace loom::config {
namespace {

namespace fs = std::filesystem;

// Made at first use: objects at namespace scope add to it.
std::vector<fs::path>& added_folders() {
  static std::vector<fs::path> folders;
  return folders;
}

bool is_share_folder(const fs::path& folder) {
  std::error_code none;
  return fs::is_directory(folder / "configs", none);
}

std::vector<fs::path> candidates() {
  std::vector<fs::path> folders;
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  if (!none) folders.push_back(program.parent_path().parent_path() / "share" / "shardloom");
  folders.insert(folders.end(), added_folders().begin(), added_folders().end());
  folders.emplace_back(LOOM_SOURCE_TREE);
  return folders;
}

bool is_written_as_path(const std::string& value) {
  const std::string extension = fs::path(value).extension().string();
  return value.find('/') != std::string::npos || extension == ".yaml" || extension == ".yml" || extension == ".json";
}

}  // namespace

ShareFolder::ShareFolder(fs::path folder) { added_folders().push_back(std::move(folder)); }

std::optional<fs::path> share_folder() {
  if (const char* named = std::getenv("SHARDLOOM_SHARE")) {
    if (is_share_folder(named)) return named;
    config_error("SHARDLOOM_SHARE is {}, where no folder configs is; name the share/shardloom of an installation",
                 named);
  }
  const std::vector<fs::path> folders = candidates();
  const auto found = std::ranges::find_if(folders, is_share_folder);
  if (found == folders.end()) return std::nullopt;
  return *found;
}

std::vector<std::string> preset_names(std::string_view kind) {
  std::vector<std::string> names;
  const std::optional<fs::path> share = share_folder();
  if (!share) return names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(*share / "configs" / kind, none)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

fs::path find_preset(const std::string& value, std::string_view kind, std::string_view flag) {
  std::error_code none;
  if (fs::exists(fs::symlink_status(value, none)) || is_written_as_path(value)) return value;
  const std::vector<std::string> names = preset_names(kind);
  if (std::ranges::find(names, value) != names.end()) return *share_folder() / "configs" / kind / (value + ".yaml");
  if (names.empty()) {
    config_error(
        "{} is {}, which is not a file, and no presets are installed beside this program; give a file, or set "
        "SHARDLOOM_SHARE to the share/shardloom of an installation",
        flag, value);
  }
  const auto nearest = nearest_spelling(value, names);
  config_error("{} is {}, neither a file nor a preset; {}presets are {}", flag, value,
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(names, ", "));
}

}  // namespace loom::config
