#include "engine/plan/sweep_variants.h"

#include <algorithm>
#include <bit>

#include "engine/objective/stage.h"
#include "engine/plan/config_changes.h"

namespace loom::plan {
namespace {

constexpr int kChunk = 1024;       // tokens of a sequence
constexpr int kChunksAtLeast = 4;  // of a sequence

}  // namespace

std::vector<PlanChoice> sharding_variants(const ChoicePlans& plans, const PlanChoice& choice) {
  std::vector<PlanChoice> variants;
  const int of_stage = choice.world / choice.stages;
  const int node = std::min(static_cast<int>(plans.profile().devices_per_node()), of_stage);
  const int tp = choice.config.tensor_parallel_size;
  for (int ranks = tp; ranks < of_stage; ++ranks) {
    const bool is_shared = ranks < node ? node % ranks == 0 : ranks % node == 0 && ranks > node;
    if (!is_shared || of_stage % ranks != 0 || ranks % tp != 0) continue;
    const int shard = ranks / tp, context = choice.config.context_ranks();
    if (shard % context != 0 && context % shard != 0) continue;
    variants.push_back(choice);
    variants.back().config.sharding_size = shard;
  }
  return variants;
}

std::vector<PlanChoice> recompute_variants(const ChoicePlans& plans, const PlanChoice& choice) {
  const train::ParallelOptions& flags = plans.arguments().parallel;
  const bool by_flags = flags.recompute_keep != sharding::RecomputeKeep::kNone || flags.recompute_every > 0;
  if (!plans.may_recompute() || by_flags) return {};
  PlanChoice selected = choice, swapped = choice;
  set_selected_recompute(selected.config);
  set_swapped_recompute(swapped.config);
  swapped.config.pin_memory = true;
  std::vector<PlanChoice> variants{selected};
  for (const int k : {2, 3, 4}) {
    variants.push_back(choice);
    set_recompute(variants.back().config, true);
    variants.back().config.recompute_every = k;
  }
  variants.push_back(swapped);
  return variants;
}

std::vector<PlanChoice> pipeline_variants(const ChoicePlans& plans, const PlanChoice& choice) {
  const bool is_given =
      !plans.arguments().parallel.pipeline.pipeline_parallel_schedule.empty() || plans.base().stages_per_rank > 0;
  if (choice.stages == 1 || is_given) return {};
  std::vector<PlanChoice> variants;
  for (const int stages : {2, 4}) {
    variants.push_back(choice);
    variants.back().stages_per_rank = stages;
  }
  return variants;
}

std::vector<PlanChoice> accumulation_variants(const ChoicePlans& plans, const PlanChoice& choice) {
  if (plans.micro_batches(choice) == 1 || choice.stages > 1) return {};  // stages are reduced once
  PlanChoice gathered_once = choice, reduced_once = choice;
  gathered_once.config.reshard_after_forward = false;
  gathered_once.config.root_reshard_after_forward = std::nullopt;
  gathered_once.config.reshard_after_backward = false;
  reduced_once.config.sync_each_batch = false;
  PlanChoice both = gathered_once;
  both.config.sync_each_batch = false;
  return {gathered_once, reduced_once, both};
}

std::vector<PlanChoice> loss_variants(const ChoicePlans& plans, const PlanChoice& choice) {
  const objective::ObjectiveOptions& flags = plans.arguments().objective;
  const bool has_chunks =
      objective::row_of(flags.stage).takes_chunks && flags.loss_reduction != objective::LossReduction::kPerSample;
  const auto most = static_cast<unsigned>(std::max(1, choice.seq_length / kChunksAtLeast));
  if (!has_chunks || choice.loss_chunk_size > 0) return {};
  PlanChoice chunked = choice;
  chunked.loss_chunk_size = std::min<std::int64_t>(kChunk, std::bit_floor(most));
  return {chunked};
}

}  // namespace loom::plan
