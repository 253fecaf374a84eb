// AllocatorSettings: the options of PyTorch's caching allocator, as PYTORCH_ALLOC_CONF writes them.
//
// Read      expandable_segments:True|False, max_split_size_mb, max_non_split_rounding_mb, roundup_power2_divisions (one
//           number, or [256:1,512:2,>:4] by MiB), garbage_collection_threshold, per_process_memory_fraction. Options
//           of pinned host memory and of locks change no number here and are accepted.
// Errors    ConfigError for another option, and for a value that PyTorch refuses.
// Source    PyTorch 2.11, c10/core/AllocatorConfig.cpp and c10/cuda/CUDACachingAllocator.cpp; torch_npu has the same
//           names in PYTORCH_NPU_ALLOC_CONF.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/device/life_class.h"

namespace loom::device {

struct AllocatorSettings {
  static constexpr std::size_t kIntervals = 16;

  bool expandable_segments = false;
  std::int64_t max_split_bytes = 0;                            // 0: pieces of any size are split
  std::int64_t max_non_split_rounding_bytes = 20 << 20;        // waste of a piece that is not split
  std::array<std::int64_t, kIntervals> power2_divisions = {};  // of sizes from 2^i MiB on; 0: multiples of 512 bytes
  double garbage_collection_threshold = 0;                     // share of the allowed memory; 0: off
  double memory_fraction = 0;                                  // of the device that a process may have; 0: all
  PoolRule pools = PoolRule::kByStream;

  bool operator==(const AllocatorSettings&) const = default;

  // PyTorch collects only where a process has a fraction of the device.
  bool collects_garbage() const { return garbage_collection_threshold > 0 && memory_fraction > 0; }
};

// `where` is named in messages ("--alloc-conf").
AllocatorSettings read_allocator_settings(std::string_view text, std::string_view where);

}  // namespace loom::device
