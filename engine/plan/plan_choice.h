// Plans of configurations near that of the user: other keys of fsdp2_config.yaml, another world, another micro-batch.
//
// Fits     the step runs within the profile's memory; as on a real device, cached segments are released first
//          (StepEstimate::memory counts how often).
// Batch    one micro-batch on every rank that reads samples of its own, unless SearchOptions have more.
// Threads  any; ChoicePlans is const after construction, and several plans run at once on several threads.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/planner.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::plan {

// One configuration of the search: the keys of the file, and flags of the command line.
struct PlanChoice {
  int world = 1;
  int stages = 1;           // ranks of a pipeline
  int stages_per_rank = 0;  // of it; 0: as the flags say
  int micro_batch = 1;
  int seq_length = 1;
  std::int64_t loss_chunk_size = 0;
  sharding::Fsdp2Config config;  // the default if no file is given

  bool operator==(const PlanChoice& other) const;
};
// Ranks of the world that read samples of their own.
int data_ranks(const PlanChoice& choice);

struct FlagValue {
  std::string_view flag;
  std::int64_t value = 0;
  std::int64_t without = -1;  // what holds where the flag is not given

  bool operator==(const FlagValue&) const = default;
};
// All of a choice that is not in the file: "--micro-batch-size", "--world-size", ...
std::vector<FlagValue> flags_of(const PlanChoice& choice);
// "sharding_size: auto, recompute_modules: [model.layers.{*}]": the keys in which `choice` differs from `base`.
std::string describe_change(const PlanChoice& choice, const PlanChoice& base);

// The degrees of parallelism of a configuration on a world. pp x tp x ulysses x ring x dp_shard x dp_replicate = world,
// but for more context ranks than sharding_size; ep divides the ranks of a stage.
struct Degrees {
  int pp = 1;
  int tp = 1;
  int ulysses = 1;
  int ring = 1;
  int ep = 1;
  int dp_shard = 1;
  int dp_replicate = 1;

  // Ranks that share the tokens of a sequence: neighbours.
  int together() const { return tp * ulysses * ring; }
  bool operator==(const Degrees&) const = default;
};
// ConfigError if a size of the configuration does not fit the world.
Degrees degrees_of(const PlanChoice& choice);
// "pp 4 x tp 8 x dp_shard 8": dp_shard, and what is above 1.
std::string to_text(const Degrees& degrees);

// Values that the user has fixed for the search. Nothing: the search may change them.
struct SearchOptions {
  std::optional<int> micro_batch_size = {};   // the only one of a sweep
  std::optional<int> global_batch_size = {};  // micro-batches and worlds divide it without remainder
  std::optional<int> longest_sequence = {};   // tokens that the model takes, where it is known
};

// A configuration that fits.
struct Candidate {
  PlanChoice choice;
  std::string change;  // against the file
  StepEstimate plan;
};

class ChoicePlans {
 public:
  static constexpr int kAllMicroBatches = std::numeric_limits<int>::max();

  // The references outlive this.
  ChoicePlans(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
              const virtual_time::HardwareProfile& profile, SearchOptions options);

  // What the user has given.
  const PlanChoice& base() const { return base_; }
  bool has_file() const { return has_file_; }
  const train::TrainSections& arguments() const { return arguments_; }
  const virtual_time::HardwareProfile& profile() const { return profile_; }
  const SearchOptions& options() const { return options_; }
  // False if flags select what is recomputed: a search does not change them.
  bool may_recompute() const;

  // Of a step of at most so many micro-batches.
  StepEstimate plan(const PlanChoice& choice, Capacity capacity, int micro_batches = kAllMicroBatches) const;
  // None where it does not fit.
  std::optional<StepEstimate> try_plan(const PlanChoice& choice, int micro_batches = kAllMicroBatches) const;
  Candidate candidate(const PlanChoice& choice, StepEstimate plan) const;
  // ConfigError if the model or the world cannot have this configuration. Plans nothing.
  void check(const PlanChoice& choice) const;

  // Micro-batches of a step.
  int micro_batches(const PlanChoice& choice) const;
  // Whether the model exists for its micro-batch, and it divides the global batch, if one is given. A pipeline other
  // than the user's needs one, of as many micro-batches as it has stages.
  bool shares_out_batch(const PlanChoice& choice) const;
  // The micro-batch sizes with which it does, ascending, up to 2^16.
  std::vector<int> micro_batch_sizes(PlanChoice choice) const;

 private:
  // Whether it has the global batch of the user.
  bool keeps_batch(const PlanChoice& choice) const;
  // Those of the user, changed to `choice`, with that many micro-batches at most.
  train::TrainSections arguments_of(const PlanChoice& choice, int micro_batches) const;
  train::EditConfig edit_of(const PlanChoice& choice) const;

  const train::TrainSections& arguments_;
  const train::PretrainCallbacks& callbacks_;
  const virtual_time::HardwareProfile& profile_;
  const SearchOptions options_;
  bool has_file_ = false;
  PlanChoice base_;
};

// The fastest per token first; of equals the one that came first.
void sort_by_speed(std::vector<Candidate>& candidates);

}  // namespace loom::plan
