// How much memory this machine can still give this process, and whether what is to be kept there fits.
//
// Units    bytes.
// Sources  MemAvailable of /proc/meminfo, and the limits of the process's memory cgroups (version 1 or 2) with what
//          they hold now, page cache that can be dropped not counted. The least counts.
// Errors   DeviceError from check_host_memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace loom::offload {

struct AvailableMemory {
  std::int64_t bytes = 0;
  std::string source;  // "MemAvailable of /proc/meminfo"
};

// Nothing where the system does not say. `root`: where /proc and /sys are.
std::optional<AvailableMemory> available_memory(const std::filesystem::path& root = "/");

// `bytes` of each of `ranks` ranks of this machine against what is available.
void check_host_memory(std::int64_t bytes, int ranks, const AvailableMemory& available);

}  // namespace loom::offload
