// JobAllocations: what a rank of a job allocates in its first step and in a later one, in the order of its host.
//
// Steps      1: optimizer state is made at its end; 2: a step as all later ones. Recorded in unlimited memory, with at
//            most four micro-batches, since later ones are like the third; in a pipeline with as many as its order
//            needs to repeat.
// Bytes      rounded up to 512, as the caching allocator counts a request; allocated as PyTorch's memory_allocated().
// Places     phase, micro-batch, FSDP group, module and operator of an allocation, described when asked for.
// Rank       the first of the world, which has the largest shards; in a pipeline the first of the given rank's place.
// Errors     ConfigError: those of the user's files.
// Threads    the calling thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/device/recording.h"
#include "engine/train/sections.h"
#include "engine/virtual_time/profile.h"

namespace loom::train {
struct PretrainCallbacks;
}

namespace loom::plan {

struct PlannedJob;

struct AllocationPoint {
  int step = 1;              // 1 or 2
  std::int64_t entries = 0;  // of that step's recording, issued before it
  std::int64_t bytes = 0;
  device::MemCategory category = device::MemCategory::kActivation;
  std::int64_t allocated_before_bytes = 0;
};

struct AllocationPlace {
  std::string what;   // "output of linear", "all-gather buffer", "gradient shards"
  std::string phase;  // "forward", "backward", "recompute", "optimizer"
  std::int64_t micro_batch = 0;
  std::int64_t stage = -1;  // of a pipeline; -1: there is none, or none runs
  std::string group;        // of FSDP, "(root)" for the root; empty: none
  std::string module;       // whose forward runs, or whose backward; empty: none

  bool operator==(const AllocationPlace&) const = default;
};
// "output of linear in 'model.layers.3.mlp', in forward of micro-batch 0 on stage 2, group 'model.layers.3'".
std::string to_text(const AllocationPlace& place);

class JobAllocations {
 public:
  JobAllocations(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                 const virtual_time::HardwareProfile& profile, int rank = 0);

  const std::vector<AllocationPoint>& points() const { return points_; }
  AllocationPlace place_of(const AllocationPoint& point) const;
  // The most that is allocated, and reserved, in the later step.
  std::int64_t peak_allocated_bytes() const { return peaks_.allocated_bytes; }
  std::int64_t peak_reserved_bytes() const { return peaks_.reserved_bytes; }

 private:
  void record(const PlannedJob& job, int rank);
  void add_points(int step);
  const device::Recording& recording_of(const AllocationPoint& point) const {
    return point.step == 1 ? first_ : later_;
  }

  device::Recording first_;
  device::Recording later_;
  std::vector<std::string> recomputed_;  // paths of modules
  std::vector<AllocationPoint> points_;
  device::MemoryPeaks peaks_;
};

// The path of the innermost module of an entry's site, "Decoder > model.layers.0 (DecoderLayer) > model.layers.0.mlp
// (SwiGlu)"; "(root)" for the root, empty without a site.
std::string innermost_module(const std::string& site);

// What PyTorch's caching allocator asks the driver for, for a request: 2 MiB up to 1 MiB, 20 MiB below 10 MiB, else the
// request rounded up to 2 MiB.
std::int64_t segment_bytes_of(std::int64_t request_bytes);

}  // namespace loom::plan
