#include "engine/plan/plan_choice.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/plan/config_changes.h"
#include "sharding/config/fsdp2_keys.h"

namespace loom::plan {
namespace {

constexpr int kLargestMicroBatch = 1 << 16;

// The keys that searches change, in the order in which a change is reported.
constexpr std::string_view kSearched[] = {"tensor_parallel_size",
                                          "sequence_parallel",
                                          "ulysses_parallel_size",
                                          "ring_attention_size",
                                          "expert_parallel_size",
                                          "moe_modules",
                                          "sharding_size",
                                          "reshard_after_forward",
                                          "recompute_modules",
                                          "use_reentrant",
                                          "recompute_keep",
                                          "recompute_every",
                                          "activation_offload_modules",
                                          "pin_memory",
                                          "num_to_forward_prefetch",
                                          "num_to_backward_prefetch",
                                          "offload_to_cpu"};

double ns_per_token(const StepEstimate& plan) {
  return static_cast<double>(plan.time.step_ns) / static_cast<double>(plan.throughput.tokens);
}

}  // namespace

int data_ranks(const PlanChoice& choice) {
  return std::max(1,
                  choice.world / choice.stages / (choice.config.context_ranks() * choice.config.tensor_parallel_size));
}

bool PlanChoice::operator==(const PlanChoice& other) const {
  return flags_of(*this) == flags_of(other) && sharding::same_values(config, other.config);
}

std::vector<FlagValue> flags_of(const PlanChoice& choice) {
  return {{"--micro-batch-size", choice.micro_batch},
          {"--world-size", choice.world},
          {"--pipeline-model-parallel-size", choice.stages, 1},
          {"--num-virtual-stages-per-pipeline-rank", choice.stages_per_rank, 0},
          {"--seq-length", choice.seq_length},
          {"--loss-chunk-size", choice.loss_chunk_size, 0}};
}

std::string describe_change(const PlanChoice& choice, const PlanChoice& base) {
  std::vector<std::string> changes;
  for (const std::string_view name : kSearched) {
    const sharding::Fsdp2Key& key = sharding::fsdp2_key(name);
    if (sharding::same_value(key, choice.config, base.config)) continue;
    changes.push_back(fmt::format("{}: {}", name, key.write(choice.config)));
  }
  const std::vector<FlagValue> flags = flags_of(choice), given = flags_of(base);
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] != given[i]) changes.push_back(fmt::format("{}: {}", flags[i].flag, flags[i].value));
  }
  return changes.empty() ? "as given" : fmt::to_string(fmt::join(changes, ", "));
}

Degrees degrees_of(const PlanChoice& choice) {
  const sharding::Fsdp2Config& config = choice.config;
  const int ranks = choice.world / choice.stages;  // of a stage
  const sharding::WorldLayout layout = sharding::validate_against_world(config, ranks);
  Degrees degrees{.pp = choice.stages,
                  .tp = layout.tensor,
                  .ulysses = config.ulysses_parallel_size,
                  .ring = config.ring_attention_size,
                  .ep = config.expert_parallel_size};
  degrees.dp_shard = std::max(1, layout.shard / config.context_ranks());
  degrees.dp_replicate = std::max(1, ranks / (degrees.together() * degrees.dp_shard));
  return degrees;
}

std::string to_text(const Degrees& degrees) {
  std::vector<std::string> factors;
  const auto add = [&](const char* axis, int degree) {
    if (degree > 1) factors.push_back(fmt::format("{} {}", axis, degree));
  };
  add("pp", degrees.pp);
  add("tp", degrees.tp);
  add("ulysses", degrees.ulysses);
  add("ring", degrees.ring);
  add("ep", degrees.ep);
  factors.push_back(fmt::format("dp_shard {}", degrees.dp_shard));
  add("dp_replicate", degrees.dp_replicate);
  return fmt::to_string(fmt::join(factors, " x "));
}

ChoicePlans::ChoicePlans(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                         const virtual_time::HardwareProfile& profile, SearchOptions options)
    : arguments_(arguments),
      callbacks_(callbacks),
      profile_(profile),
      options_(options),
      has_file_(arguments.parallel.use_torch_fsdp2) {
  base_.world = arguments.launch.ranks;
  base_.stages = arguments.parallel.pipeline.pipeline_model_parallel_size;
  base_.stages_per_rank = arguments.parallel.pipeline.num_virtual_stages_per_pipeline_rank;
  base_.micro_batch = arguments.schedule.micro_batch_size;
  base_.seq_length = arguments.data.seq_length;
  base_.loss_chunk_size = arguments.objective.loss_chunk_size;
  if (has_file_) base_.config = train::read_sharding(arguments.parallel);
}

bool ChoicePlans::may_recompute() const {
  return arguments_.parallel.megatron_recompute_flags.empty() && !recomputable(base_.config).empty();
}

bool ChoicePlans::keeps_batch(const PlanChoice& choice) const {
  return options_.global_batch_size || (choice.world == base_.world && choice.micro_batch == base_.micro_batch &&
                                        data_ranks(choice) == data_ranks(base_));
}

int ChoicePlans::micro_batches(const PlanChoice& choice) const {
  if (!keeps_batch(choice)) return 1;
  return arguments_.schedule.global_batch_size / (data_ranks(choice) * choice.micro_batch);
}

train::TrainSections ChoicePlans::arguments_of(const PlanChoice& choice, int micro_batches) const {
  train::TrainSections arguments = arguments_;
  arguments.launch.ranks = choice.world;
  arguments.parallel.pipeline.pipeline_model_parallel_size = choice.stages;
  arguments.parallel.pipeline.num_virtual_stages_per_pipeline_rank = choice.stages_per_rank;
  arguments.schedule.micro_batch_size = choice.micro_batch;
  arguments.data.seq_length = choice.seq_length;
  arguments.objective.loss_chunk_size = choice.loss_chunk_size;
  const int all = this->micro_batches(choice);
  if (!keeps_batch(choice) || micro_batches < all) {
    arguments.schedule.global_batch_size = data_ranks(choice) * choice.micro_batch * std::min(micro_batches, all);
  }
  return arguments;
}

train::EditConfig ChoicePlans::edit_of(const PlanChoice& choice) const {
  if (choice == base_ || !has_file_) return nullptr;
  return [&choice](sharding::Fsdp2Config& config) { config = choice.config; };
}

StepEstimate ChoicePlans::plan(const PlanChoice& choice, Capacity capacity, int micro_batches) const {
  return estimate_step(arguments_of(choice, micro_batches), callbacks_, profile_, capacity, edit_of(choice));
}

std::optional<StepEstimate> ChoicePlans::try_plan(const PlanChoice& choice, int micro_batches) const {
  try {
    return plan(choice, Capacity::kOfTheProfile, micro_batches);
  } catch (const OutOfMemoryError&) {
    return std::nullopt;
  }
}

Candidate ChoicePlans::candidate(const PlanChoice& choice, StepEstimate plan) const {
  return {choice, describe_change(choice, base_), std::move(plan)};
}

void ChoicePlans::check(const PlanChoice& choice) const {
  train::read_inputs(arguments_of(choice, choice.stages), callbacks_, edit_of(choice));
}

bool ChoicePlans::shares_out_batch(const PlanChoice& choice) const {
  const auto [least, most] = callbacks_.micro_batch_sizes;
  if (choice.micro_batch < least || choice.micro_batch > most) return false;
  if (!options_.global_batch_size) return choice.stages == base_.stages;
  return *options_.global_batch_size % (std::int64_t{data_ranks(choice)} * choice.micro_batch) == 0 &&
         (choice.stages == base_.stages || micro_batches(choice) >= choice.stages);
}

std::vector<int> ChoicePlans::micro_batch_sizes(PlanChoice choice) const {
  std::vector<int> sizes;
  for (choice.micro_batch = 1; choice.micro_batch <= kLargestMicroBatch; ++choice.micro_batch) {
    if (shares_out_batch(choice)) sizes.push_back(choice.micro_batch);
  }
  return sizes;
}

void sort_by_speed(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return ns_per_token(a.plan) < ns_per_token(b.plan); });
}

}  // namespace loom::plan
