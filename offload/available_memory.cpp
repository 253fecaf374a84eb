#include "offload/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "engine/core/error.h"

namespace loom::offload {
namespace {

namespace fs = std::filesystem;

// The first number of a file: none for "max" or without a file.
std::optional<std::int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t number = 0;
  if (!(in >> number)) return std::nullopt;
  return number;
}

// The number behind a word.
std::optional<std::int64_t> number_behind(const fs::path& file, std::string_view word) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    std::int64_t number = 0;
    if (words >> first >> number && first == word) return number;
  }
  return std::nullopt;
}

// The file names of one version of cgroups.
struct CgroupWords {
  const char* folder;  // below /sys/fs/cgroup
  const char* limit;
  const char* usage;
  const char* droppable;  // of memory.stat
};
constexpr CgroupWords kVersion1{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr CgroupWords kVersion2{"", "memory.max", "memory.current", "inactive_file"};

// Version 1 writes a limit near the largest number where there is none.
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max() / 4;

std::optional<AvailableMemory> left_in(const fs::path& folder, const CgroupWords& words, const std::string& name) {
  const auto limit = number_in(folder / words.limit);
  const auto usage = number_in(folder / words.usage);
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  const std::int64_t held = *usage - number_behind(folder / "memory.stat", words.droppable).value_or(0);
  return AvailableMemory{std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, held)),
                         fmt::format("{} of cgroup {} is {}", words.limit, name, *limit)};
}

void take_least(std::optional<AvailableMemory>& least, const std::optional<AvailableMemory>& other) {
  if (other && (!least || other->bytes < least->bytes)) least = other;
}

// The process's own group and the groups around it; in a container the path may begin above the mount.
void take_groups(std::optional<AvailableMemory>& least, const fs::path& mount, const CgroupWords& words,
                 const std::string& group) {
  fs::path path = fs::path(group).relative_path();
  for (;; path = path.parent_path()) {
    take_least(least, left_in(mount / words.folder / path, words, "/" + path.string()));
    if (path.empty()) return;
  }
}

}  // namespace

std::optional<AvailableMemory> available_memory(const fs::path& root) {
  std::optional<AvailableMemory> least;
  if (const auto kib = number_behind(root / "proc/meminfo", "MemAvailable:")) {
    least = {*kib * 1024, "MemAvailable of /proc/meminfo"};
  }
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/job" or "0::/job"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers.find(",memory,") != std::string::npos) take_groups(least, root / "sys/fs/cgroup", kVersion1, group);
    if (controllers == ",,") take_groups(least, root / "sys/fs/cgroup", kVersion2, group);
  }
  return least;
}

void check_host_memory(std::int64_t bytes, int ranks, const AvailableMemory& available) {
  if (bytes <= available.bytes / ranks) return;
  raise<DeviceError>(
      "host memory: the {} of this machine keep {} bytes each on the host (shards, gradients, optimizer state), {} in "
      "all, and {} are available ({}); use fewer ranks on this machine, more machines or a smaller model, or keep less "
      "on "
      "the host (offload_to_cpu: false)",
      ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks), bytes, bytes * ranks, available.bytes, available.source);
}

}  // namespace loom::offload
