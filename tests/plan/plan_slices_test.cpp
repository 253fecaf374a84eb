// Promise: with overlap_slices a plan of ranks that share matrices has its collectives beside products: the step is
//          shorter by what is no longer exposed; an input that is gathered again costs its bytes, and frees the other
//          ranks' part of it.
// World:   rank 0 of 16 H200; two layers of Llama 3's 8B in bf16, 8 ranks share matrices, FSDP over 2; two sequences
//          of 8192 tokens a micro-batch.
#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/plan/planner.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

constexpr int kSequences = 2;
constexpr std::int64_t kTokens = 8192, kHidden = 4096, kLayers = 2, kShared = 8, kBf16 = 2;

StepEstimate planned(const std::string& keys) {
  train::TrainSections a = arguments();
  const std::filesystem::path folder = test::fresh_folder();
  a.model.model_config = test::write_file(
      folder / "model.yaml",
      "model_type: llama\nvocab_size: 128256\nhidden_size: 4096\nintermediate_size: 14336\nnum_hidden_layers: 2\n"
      "num_attention_heads: 32\nnum_key_value_heads: 8\nmax_position_embeddings: 8192\nrms_norm_eps: 1.0e-5\n"
      "rope_theta: 500000.0\ntie_word_embeddings: false\n");
  a.parallel.fsdp2_config_path =
      test::write_file(folder / "sharding.yaml",
                       "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n"
                       "param_dtype: bf16\nreduce_dtype: fp32\ntensor_parallel_size: 8\nsequence_parallel: true\n" +
                           keys);
  a.data.data_path = {test::write_file(folder / "text.txt", std::string(40 * kTokens, 'x'))};
  a.launch.ranks = 16;
  a.data.seq_length = static_cast<int>(kTokens);
  a.schedule.micro_batch_size = kSequences;
  a.schedule.global_batch_size = 2 * kSequences;
  return estimate_step(a, cli::hub_callbacks(a), profile());
}

TEST(PlanOfSlices, IsFasterByWhatIsNoLongerExposed) {
  const StepEstimate one = planned(""), two = planned("overlap_slices: 2\n"), four = planned("overlap_slices: 4\n");
  const auto exposed = [](const StepEstimate& plan) { return plan.time.breakdown.exposed_comm_ns; };
  EXPECT_LT(two.time.step_ns, one.time.step_ns);
  EXPECT_LT(four.time.step_ns, two.time.step_ns);
  EXPECT_LT(exposed(two), exposed(one));
  EXPECT_LT(exposed(four), exposed(two));
}

std::int64_t received(const StepEstimate& plan, const std::string& axis) {
  for (const sharding::AxisVolume& volume : plan.volume) {
    if (volume.axis == axis) return volume.received_bytes;
  }
  return 0;
}

// Two blocks a layer gather 7/8 of the hidden states once more; after forward a rank has the other ranks' 7/8 less.
TEST(PlanOfSlices, GathersAgainWhatItDoesNotKeep) {
  const StepEstimate whole = planned("overlap_slices: 2\n");
  const StepEstimate again = planned("overlap_slices: 2\nregather_colwise_input: true\n");
  const std::int64_t others = kSequences * kTokens * kHidden * kBf16 * (kShared - 1) / kShared;
  EXPECT_EQ(received(again, "tp") - received(whole, "tp"), 2 * kLayers * others);
  const auto kept = [](const StepEstimate& plan) { return plan.memory.phases.front().end_allocated_bytes; };
  EXPECT_EQ(whole.memory.phases.front().phase, "forward");
  EXPECT_EQ(kept(whole) - kept(again), 2 * kLayers * others);
}

}  // namespace
}  // namespace loom::plan
