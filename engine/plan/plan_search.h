// Searches with plans: the remedies for a step that does not fit, the fastest configuration, the largest batch, the
// longest sequence.
//
// Fits     as in plan_choice.h, and so are batches.
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

#include "engine/plan/longest_sequence.h"
#include "engine/plan/plan_choice.h"
#include "engine/plan/sweep.h"

namespace loom::plan {

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

class PlanSearch {
 public:
  // The references outlive the search.
  PlanSearch(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
             const virtual_time::HardwareProfile& profile, SearchOptions options = {});

  CheckedEstimate check();

  using Candidate = plan::Candidate;
  // Changes with which the step fits, whether it does as it is or not: all single ones, with recompute in every form,
  // the loss in chunks and smaller micro-batches; two together where no single one is enough. The fastest first.
  std::vector<Candidate> fitting_changes() const;
  // What fits among degrees of parallelism, keys of the file and micro-batches (sweep.h).
  Sweep sweep() const { return plan::sweep(plans_); }
  // The largest micro-batch with which the step fits; larger ones are assumed to need more. ConfigError if none fits.
  Candidate largest_micro_batch();
  // The smallest world with which the step fits: found by doubling and halving, as larger worlds mostly need less; then
  // the 32 next smaller ones are tried too. ConfigError if none fits, or if no world is possible.
  Candidate smallest_world();
  // The longest sequence with which it fits (longest_sequence.h).
  LongestSequence longest_sequence() const { return plan::longest_sequence(plans_); }

 private:
  using Change = std::function<void(PlanChoice&)>;
  // The changes that affect the plan.
  std::vector<Change> proposals(const StepEstimate& too_large) const;
  std::vector<Change> more_proposals() const;
  // Those of `least` of the changes together, of one more only when none fits, up to `most`; by speed.
  std::vector<Candidate> fitting(const std::vector<Change>& changes, std::size_t least, std::size_t most) const;
  std::vector<Remedy> remedies(const StepEstimate& too_large) const;
  std::vector<int> worlds() const;

  const ChoicePlans plans_;
};

}  // namespace loom::plan
