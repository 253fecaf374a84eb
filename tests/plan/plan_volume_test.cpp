// Promise: what the collectives of a step bring a rank over each axis is what the formulas of sharding/axis_volume.h
//          predict, byte for byte, with and without recompute, for one and two micro-batches; where the load of experts
//          is uneven the text says what the prediction leaves out.
// World:   rank 0 of 4 planned ranks; a Qwen3-MoE of two layers, all sparse, in fp32 unless a case says otherwise; 16
//          tokens a row, one row a micro-batch.
#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/planner.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Axes = std::vector<std::string>;
using sharding::AxisVolume;

constexpr std::int64_t kLayers = 2, kTokens = 16, kHidden = 16, kHeads = 4, kKvHeads = 2, kDim = 8, kExperts = 4;
constexpr std::int64_t kChoices = 2, kFloat = 4;
constexpr const char* kModel =
    "model_type: qwen3_moe\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
    "num_attention_heads: 4\nnum_key_value_heads: 2\nhead_dim: 8\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
    "num_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 8\nnorm_topk_prob: true\ndecoder_sparse_step: 1\n"
    "mlp_only_layers: []\ntie_word_embeddings: false\n";

// `keys`: of fsdp2_config.yaml, beside the groups. `data`: ranks that read samples of their own.
train::TrainSections job(const std::string& keys, std::int64_t micro_batches = 1, int data = kRanks) {
  train::TrainSections a = arguments();
  const std::filesystem::path folder = test::fresh_folder();
  a.model.model_config = test::write_file(folder / "moe.yaml", kModel);
  a.parallel.fsdp2_config_path = test::write_file(
      folder / "sharding.yaml", "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n" + keys);
  a.data.seq_length = kTokens;
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = micro_batches * data;
  return a;
}

StepEstimate planned(const train::TrainSections& a) { return estimate_step(a, cli::hub_callbacks(a), profile()); }

struct Case {
  const char* name;
  std::string keys;
  Axes axes;
  int data = kRanks;
};
void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }

const std::string kShards = "sharding_size: auto\n";
const std::string kSharedExperts = "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n";

class Volume : public ::testing::TestWithParam<Case> {};

TEST_P(Volume, IsWhatIsPredictedToTheByte) {
  const std::string layers = "recompute_modules: [\"model.layers.{*}\"]\n";
  for (const std::string& recompute :
       {std::string(), layers, layers + "use_reentrant: false\n", layers + "recompute_every: 2\n",
        std::string("recompute_modules: [\"model.layers.{*}.mlp\", \"model.layers.{*}.self_attn\"]\n"
                    "use_reentrant: false\n")}) {
    for (const std::int64_t micro_batches : {1, 2}) {
      const StepEstimate plan = planned(job(GetParam().keys + recompute, micro_batches, GetParam().data));
      Axes axes;
      for (const AxisVolume& volume : plan.volume) {
        axes.push_back(volume.axis);
        EXPECT_EQ(volume.predicted_bytes, volume.received_bytes)
            << volume.axis << ", " << micro_batches << " micro-batches, " << recompute;
      }
      EXPECT_EQ(axes, GetParam().axes);
      EXPECT_THAT(to_text(plan), Not(HasSubstr("predicted for equally loaded experts")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    OfAxes, Volume,
    ::testing::Values(
        Case{"Fsdp", kShards, {"dp_shard"}}, Case{"Zero2", kShards + "reshard_after_forward: false\n", {"dp_shard"}},
        Case{"GatheredOnce", kShards + "reshard_after_forward: false\nreshard_after_backward: false\n", {"dp_shard"}},
        Case{"KeptAfterBackward", kShards + "reshard_after_backward: false\n", {"dp_shard"}},
        Case{"ReducedOnce", kShards + "sync_each_batch: false\n", {"dp_shard"}},
        Case{"ReducedOnceInCopies", "sharding_size: 2\nsync_each_batch: false\n", {"dp_shard", "dp_replicate"}},
        Case{"ReducedOnceWithExperts",
             kShards + kSharedExperts + "sync_each_batch: false\nreshard_after_backward: false\n",
             {"dp_shard", "efsdp", "ep"}},
        Case{"Node", kShards + "reshard_after_forward: 2\n", {"dp_shard", "post_forward"}},
        Case{"Bf16", kShards + "param_dtype: bf16\nreduce_dtype: fp32\n", {"dp_shard"}},
        Case{"Hsdp", "sharding_size: 2\n", {"dp_shard", "dp_replicate"}},
        Case{"Experts", kShards + kSharedExperts, {"dp_shard", "efsdp", "ep"}},
        Case{"ExpertsInBf16", kShards + kSharedExperts + "param_dtype: bf16\n", {"dp_shard", "efsdp", "ep"}},
        Case{"ExpertsAsCopies",
             kShards + kSharedExperts + "reshard_local_experts: false\n",
             {"dp_shard", "efsdp", "ep"}},
        Case{"Ring", kShards + "ring_attention_size: 2\n", {"dp_shard", "ring"}, 2},
        Case{"RingInBf16", kShards + "ring_attention_size: 4\nparam_dtype: bf16\n", {"dp_shard", "ring"}, 1},
        Case{"RingRegathered",
             kShards + "ring_attention_size: 4\nring_rotate_method: allgather\n",
             {"dp_shard", "ring"},
             1},
        Case{"RingGathered",
             kShards + "ring_attention_size: 2\nring_rotate_method: kvallgather\n",
             {"dp_shard", "ring"},
             2},
        Case{"Ulysses", kShards + "ulysses_parallel_size: 2\n", {"dp_shard", "ulysses"}, 2},
        Case{"UlyssesRepeatsHeads", kShards + "ulysses_parallel_size: 4\n", {"dp_shard", "ulysses"}, 1},
        Case{"Hybrid",
             kShards + "ring_attention_size: 2\nulysses_parallel_size: 2\n",
             {"dp_shard", "ring", "ulysses"},
             1},
        Case{"Tensor", kShards + "tensor_parallel_size: 2\n", {"dp_shard", "tp"}, 2},
        Case{"TensorWithLogits", kShards + "tensor_parallel_size: 2\nloss_parallel: false\n", {"dp_shard", "tp"}, 2},
        Case{"Sequence", kShards + "tensor_parallel_size: 2\nsequence_parallel: true\n", {"dp_shard", "tp"}, 2},
        Case{"Slices",
             kShards + "tensor_parallel_size: 2\nsequence_parallel: true\noverlap_slices: 2\n",
             {"dp_shard", "tp"},
             2},
        Case{"Regathered",
             kShards + "tensor_parallel_size: 2\nsequence_parallel: true\noverlap_slices: 4\n"
                       "regather_colwise_input: true\n",
             {"dp_shard", "tp"},
             2},
        Case{"RegatheredOfFrozenLayers",
             kShards + "tensor_parallel_size: 2\nsequence_parallel: true\nregather_colwise_input: true\n"
                       "freeze: [\"model.layers.0.self_attn\"]\n",
             {"dp_shard", "tp"},
             2},
        Case{"Copies", "sharding_size: 1\ntensor_parallel_size: 4\n", {"tp", "tp_copies"}, 1},
        Case{"All", kShards + kSharedExperts + "ring_attention_size: 2\n", {"dp_shard", "efsdp", "ep", "ring"}, 2}),
    [](const auto& info) { return info.param.name; });

std::int64_t received(const StepEstimate& plan, const std::string& axis) {
  const auto at = std::ranges::find(plan.volume, axis, &AxisVolume::axis);
  return at == plan.volume.end() ? 0 : at->received_bytes;
}

// Every parameter is gathered for forward and for backward and reduced, 3/4 of it each time.
TEST(PlanVolume, OfFsdpIsThreeTimesTheParameters) {
  const StepEstimate plan = planned(job(kShards));
  EXPECT_EQ(received(plan, "dp_shard"), 3 * plan.parameters * kFloat * 3 / 4);
}

// Half of the rows go to the other rank and come back, in both directions.
TEST(PlanVolume, OfExpertsIsFourTimesTheRowsThatTravel) {
  const std::int64_t rows = kTokens * kChoices / 2, counts = kExperts * 8;
  EXPECT_EQ(received(planned(job(kShards + kSharedExperts)), "ep"), kLayers * (4 * rows * kHidden * kFloat + counts));
}

// The other rank's tokens, choices and weights, and its part of the results; in backward tokens twice, and weights.
TEST(PlanVolume, OfGatheredTokensIsFourTimesTheTokens) {
  const StepEstimate plan = planned(job(kShards + kSharedExperts + "moe_token_dispatcher_type: allgather\n"));
  const std::int64_t hidden = kTokens * kHidden * kFloat, weights = kTokens * kChoices * kFloat;
  EXPECT_EQ(received(plan, "ep"), kLayers * (4 * hidden + 2 * weights + kTokens * kChoices * 8));
  for (const AxisVolume& volume : plan.volume) EXPECT_EQ(volume.predicted_bytes, volume.received_bytes) << volume.axis;
}

// Keys and values of 8 tokens, once in forward; in backward again, and their gradients twice.
TEST(PlanVolume, OfARingIsFourBlocksOfKeysAndValues) {
  const std::int64_t block = 2 * kTokens / 2 * kKvHeads * kDim * kFloat;
  EXPECT_EQ(received(planned(job(kShards + "ring_attention_size: 2\n", 1, 2)), "ring"), kLayers * 4 * block);
}

// Half of q, k, v and the result of 8 tokens, in both directions.
TEST(PlanVolume, OfUlyssesIsHalfOfWhatAttentionReadsAndWrites) {
  const std::int64_t whole = kTokens / 2 * (2 * kHeads + 2 * kKvHeads) * kDim * kFloat;
  EXPECT_EQ(received(planned(job(kShards + "ulysses_parallel_size: 2\n", 1, 2)), "ulysses"), kLayers * 2 * whole / 2);
}

// Between two ranks what one gets more of, it sends back less of.
TEST(PlanVolume, OfUnevenExpertsIsToldToBeUneven) {
  train::TrainSections a = job(kShards + "expert_parallel_size: 4\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n");
  a.parallel.expert_load = {3, 1, 1, 1};
  const StepEstimate plan = planned(a);
  for (const AxisVolume& volume : plan.volume) {
    EXPECT_EQ(volume.predicted_bytes == volume.received_bytes, volume.axis != "ep") << volume.axis;
  }
  EXPECT_THAT(to_text(plan), HasSubstr("  predicted for equally loaded experts"));
}

TEST(PlanVolume, IsATableOfTheText) {
  EXPECT_THAT(to_text(planned(job(kShards + kSharedExperts))),
              HasSubstr("\nby axis, received KiB        ranks   predicted    recorded\n"
                        "  dp_shard                       4      101.11      101.11\n"
                        "  efsdp                          2        9.00        9.00\n"
                        "  ep                             2        8.06        8.06\n\n"));
}

}  // namespace
}  // namespace loom::plan
