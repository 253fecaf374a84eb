// The memory that this machine can still give this process, and whether a planned amount fits.
//
// Units    bytes.
// Sources  MemAvailable of /proc/meminfo, and the limits of the process's memory cgroups (version 1 or 2) minus their
//          present use, without droppable page cache. The least counts.
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

// Nothing if the system does not report it. `root`: the parent of /proc and /sys.
std::optional<AvailableMemory> available_memory(const std::filesystem::path& root = "/");

// Checks `bytes` for each of `ranks` ranks of this machine against the available memory.
void check_host_memory(std::int64_t bytes, int ranks, const AvailableMemory& available);

}  // namespace loom::offload
