// Searches with plans: the remedies for a step that does not fit, the fastest configuration, the largest batch.
//
// Fits     the step runs within the profile's memory; as on a real device, cached segments are released first
//          (StepEstimate::memory counts how often).
// Batch    one micro-batch on every device, unless SearchOptions have more.
// Worlds   every number of devices up to a node, whole nodes beyond it; only numbers that the file's sharding_size,
//          reshard_after_forward and expert_parallel_size divide, and that divide the global batch.
// Changes  to the keys of fsdp2_config.yaml that trade memory for time, and to the micro-batch. Recompute means the
//          containers among sub_modules_to_wrap ("model.layers.{*}").
// Order    by step time per token; ties go to the first named. The same answer every time.
// Threads  the calling thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/planner.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::plan {

// One configuration of the search: the keys of the file, and of the command line.
struct PlanChoice {
  int world = 1;
  int micro_batch = 1;
  sharding::Fsdp2Config config;  // the default if no file is given

  bool operator==(const PlanChoice& other) const;
};
// "sharding_size: auto, recompute_modules: [model.layers.{*}]": the keys in which `choice` differs from `base`.
std::string describe_change(const PlanChoice& choice, const PlanChoice& base);

// A remedy: a change after which the step fits.
struct Remedy {
  std::string change;
  std::int64_t saved_bytes = 0;  // of reserved memory, against the step that does not fit
  std::int64_t step_ns = 0;
};

// The plan of the step as configured. If it does not fit: why, its plan in unlimited memory, and the (up to
// three) cheapest remedies.
struct CheckedEstimate {
  StepEstimate plan;
  std::optional<std::string> out_of_memory;  // the point of failure, and what filled the device
  std::vector<Remedy> remedies;
};

// Values that the user has fixed for the search. Nothing: the search may change them.
struct SearchOptions {
  std::optional<int> micro_batch_size = {};   // the only one of sweep()
  std::optional<int> global_batch_size = {};  // micro-batches and worlds divide it without remainder
};

class PlanSearch {
 public:
  // The references outlive the search.
  PlanSearch(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
             const virtual_time::HardwareProfile& profile, SearchOptions options = {});

  CheckedEstimate check();

  struct Candidate {
    PlanChoice choice;
    std::string change;  // against the file
    StepEstimate plan;
  };
  // Every combination of sharding size (auto, the devices of a node), reshard, recompute and prefetch that fits, each
  // with the micro-batches 1, 2, 4, ... and the largest that fits; for the three fastest ones every micro-batch,
  // or 64 evenly spaced ones if more fit. The fastest per token first.
  std::vector<Candidate> sweep();
  // The largest micro-batch with which the step fits; larger ones are assumed to need more. ConfigError if none fits.
  Candidate largest_micro_batch();
  // The smallest world with which the step fits: found by doubling and halving, as larger worlds mostly need less; then
  // the 32 next smaller ones are tried too. ConfigError if none fits, or if no world is possible.
  Candidate smallest_world();

 private:
  std::optional<StepEstimate> try_plan(const PlanChoice& choice) const;
  StepEstimate plan(const PlanChoice& choice, Capacity capacity) const;
  Candidate candidate(const PlanChoice& choice, StepEstimate plan) const;
  using Change = std::function<void(PlanChoice&)>;
  // The changes that affect the plan.
  std::vector<Change> proposals(const StepEstimate& too_large) const;
  std::vector<Remedy> remedies(const StepEstimate& too_large) const;
  bool shares_out_batch(int world, int micro_batch) const;
  std::vector<int> micro_batches(int world) const;
  std::vector<int> worlds() const;
  // False if flags select what is recomputed: a search does not change them.
  bool may_recompute() const;
  std::vector<PlanChoice> combinations() const;

  const train::TrainSections& arguments_;
  const train::PretrainCallbacks& callbacks_;
  const virtual_time::HardwareProfile& profile_;
  const SearchOptions options_;
  bool has_file_ = false;
  PlanChoice base_;
};

}  // namespace loom::plan
