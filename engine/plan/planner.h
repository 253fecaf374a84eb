// planner: one training step of a rank of any world, without arithmetic and without memory: its bytes and its time.
//
// How       the trainer itself runs, on a dry device in a simulated world: a plan and a run use the
//           same code. Peers are assumed to be identical, rank 0 has the largest shards, expert routing counts as
//           balanced. Steps before the planned one bring caches and optimizer state to their steady state.
// Stages    of a pipeline: the first rank of each place is planned, and their times are resolved together. Figures of
//           one rank are those of the rank that reserves most. Of many micro-batches a few are recorded
//           (few_micro_batches.h).
// Memory    as PyTorch's caching allocator counts: allocated, and reserved in segments; by phase and by category.
// Time      virtual, from the recording of the step and a hardware profile: as the host issues it, and what device and
//           links alone would need (device bound).
// Errors    ConfigError for the user's files. OutOfMemoryError with phase, group and the table by category if the
//           profile's memory is too small, HostMemoryError if its host is, unless the capacity is lifted.
// Threads   the calling thread, and others for the ranks of a pipeline; several plans at once on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/device/caching_allocator.h"
#include "engine/device/recording.h"
#include "engine/observe/collective_sums.h"
#include "engine/plan/outside_memory.h"
#include "engine/plan/plan_stages.h"
#include "engine/plan/swap_estimate.h"
#include "engine/plan/training_cost.h"
#include "engine/train/inputs.h"
#include "engine/virtual_time/breakdown.h"
#include "engine/virtual_time/time_model.h"
#include "sharding/axis_volume.h"

namespace loom::plan {

struct PhaseMemory {
  // "forward", "backward", "optimizer"; the worst of the micro-batches. Before them "load" where the job reads weights
  // or a checkpoint, behind them "save" where it writes (load_and_save.h).
  std::string phase;
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t end_allocated_bytes = 0;
  device::CategoryBytes by_category_at_peak{};
  std::int64_t host_bytes = 0;  // of "load" and "save": what they need on the host beside a step's, by formula
};

// The allocator freed its cached segments because a new one did not fit. The device then waits for all its streams;
// the step's time does not include this wait.
struct CacheFlush {
  std::string phase;
  std::string group;  // that the device computed for; empty: none yet
  std::int64_t count = 0;
};

// The options of the caching allocator that the plan assumes, and the same but for expandable segments.
struct AllocatorEstimate {
  bool expandable_segments = false;
  std::string conf;  // as PYTORCH_ALLOC_CONF; empty: PyTorch's defaults
  std::string from;
  std::optional<std::int64_t> other_peak_reserved_bytes;  // since the run began; none: it does not fit
};

struct MemoryEstimate {
  AllocatorEstimate allocator;
  std::vector<PhaseMemory> phases;
  std::int64_t steady_allocated_bytes = 0;  // between steps
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t peak_reserved_bytes = 0;  // segments at their most
  std::int64_t reserved_bytes = 0;       // segments at the end of the step: what monitoring tools show
  std::int64_t cache_flushes = 0;        // in the step, all together
  std::vector<CacheFlush> flushes;       // by place, in the order of the step
  std::vector<device::PoolStats> pools;  // the allocator's contents at the end of the step
  bool pools_by_life = false;            // --memory-fragmentation
  std::int64_t host_bytes = 0;           // peak of the host's memory that a device keeps (offload)
  std::int64_t host_devices = 0;         // devices that share a host
  std::int64_t host_capacity_bytes = 0;  // of a host; 0: not in the profile
  bool host_fits = true;                 // also if the profile does not say
  std::int64_t capacity_bytes = 0;       // the allocator's limit: memory minus what is outside it
  OutsideMemory outside;
  std::int64_t shown_bytes = 0;      // by a tool such as nvidia-smi at the end of the step: segments and `outside`
  std::int64_t workspace_bytes = 0;  // of matrix products, which is inside the allocator
  std::string peak_phase;
  bool fits = true;  // the device's memory
};

// The collectives of one step of one kind over one group of links.
using CommunicationEstimate = observe::CollectiveSum;

struct PhaseTime {
  std::string phase;
  std::int64_t host_ns = 0;  // between the times when the host reaches the phases
  std::int64_t compute_ns = 0;
};

struct TimeEstimate {
  std::int64_t step_ns = 0;
  std::int64_t device_bound_ns = 0;  // the step if dispatch cost the host nothing
  std::vector<PhaseTime> phases;
  virtual_time::Breakdown breakdown;
  std::vector<virtual_time::AxisTime> exposed;  // breakdown.exposed_comm_ns by axis of ranks
  // The host is the bottleneck: it causes more than a twentieth of the step.
  bool host_bound() const { return step_ns > device_bound_ns + device_bound_ns / 20; }
};

struct ThroughputEstimate {
  std::int64_t tokens = 0;  // of a step, on all devices
  double tokens_per_s = 0;
  double tokens_per_s_per_device = 0;
  // Arithmetic of matrix products and attention on one device in one step (of a pipeline: the mean of its ranks): of
  // the model (three times the first forward, causal attention counted by half), and of everything that ran, recompute
  // included.
  double model_flops = 0;
  double hardware_flops = 0;
  double mfu = 0;  // model_flops / step / peak of the profile in the compute dtype
  double hfu = 0;
};

// A rank's recorded step, for drawing.
struct PlannedRun {
  int rank = 0;                 // in the world
  device::Recording recording;  // its memory included
  virtual_time::RankTimes times;
};

struct StepEstimate {
  std::string model;
  std::int64_t parameters = 0;
  std::int64_t trained_parameters = 0;  // fewer: the rest is frozen
  std::string mode;                     // "2 x 4: shards over 4, replicates over 2"
  std::string device;                   // the profile's name
  std::string software;                 // that the profile's rates stand for
  int world = 1;
  std::int64_t micro_batch = 0;
  std::int64_t micro_batches = 0;
  std::int64_t seq_length = 0;
  MemoryEstimate memory;
  std::vector<CommunicationEstimate> communication;
  std::vector<sharding::AxisVolume> volume;  // without FSDP2: none
  TimeEstimate time;
  ThroughputEstimate throughput;
  std::optional<TrainingCost> training;  // whoever plans sets it; none: not asked for
  std::vector<SwapEstimate> swaps;       // of the blocks whose activations are swapped
  std::vector<std::string> warnings;     // of the configuration and of the schedule
  std::vector<PlannedRun> runs;          // of a rank; of a pipeline one for each place
  std::size_t shown = 0;                 // of `runs`: whose figures these are
  std::optional<PipelineEstimate> pipeline;

  const PlannedRun& run() const { return runs.at(shown); }
};

// The host of the profile is too small for the data that its devices keep on it.
class HostMemoryError : public OutOfMemoryError {
 public:
  using OutOfMemoryError::OutOfMemoryError;
};

// The allocator's limit on a planned device: --device-memory, else what the driver and the communicators that the job's
// axes make leave of the profile's. OutOfMemoryError if they leave nothing.
std::int64_t capacity_of(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                         const virtual_time::HardwareProfile& profile);

enum class Capacity : std::uint8_t {
  kOfTheProfile,
  kLifted,  // unlimited memory: how much would it need?
};

// `arguments.launch.ranks` is the size of the world. The callbacks are the training's; only a batch's shapes matter.
// `edit` changes the configuration that was read, before it is checked against the model and the world.
StepEstimate estimate_step(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                           const virtual_time::HardwareProfile& profile, Capacity capacity = Capacity::kOfTheProfile,
                           const train::EditConfig& edit = nullptr);

}  // namespace loom::plan
