// Promise: a plan in FP8 is faster by its products, leaves memory as it is, gathers half of what is cast before a
//          gather, and is refused for a device without FP8.
// World:   rank 0 of 16 H200; two layers of Llama 3's 8B in bf16; FSDP alone, or 8 ranks that share matrices.
#include "engine/plan/plan_fp8.h"

#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/plan/planner.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

constexpr std::int64_t kHidden = 4096, kWide = 14336, kKeys = 1024, kRanksOfAll = 16;

StepEstimate planned(const std::string& keys, const std::optional<std::string>& recipe, bool gathers = false) {
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
                       "param_dtype: bf16\nreduce_dtype: fp32\n" +
                           keys);
  a.data.data_path = {test::write_file(folder / "text.txt", std::string(400'000, 'x'))};
  a.launch.ranks = kRanksOfAll;
  a.data.seq_length = 8192;
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = keys.empty() ? kRanksOfAll : 2;
  return estimate_step(a, cli::hub_callbacks(a), in_fp8(profile(), recipe, gathers));
}

std::int64_t gathered_bytes(const StepEstimate& plan) {
  std::int64_t bytes = 0;
  for (const observe::CollectiveSum& sum : plan.communication) {
    if (sum.collective == "all_gather") bytes += sum.received_bytes;
  }
  return bytes;
}

TEST(PlanInFp8, IsFasterInTheSameMemory) {
  const StepEstimate plain = planned("", {});
  for (const char* recipe : {"tensorwise", "rowwise", "delayed"}) {
    const StepEstimate fp8 = planned("", recipe);
    EXPECT_LT(fp8.time.step_ns, plain.time.step_ns) << recipe;
    EXPECT_EQ(fp8.memory.peak_allocated_bytes, plain.memory.peak_allocated_bytes);
    EXPECT_EQ(gathered_bytes(fp8), gathered_bytes(plain));
  }
}

// Matrices of two layers, gathered twice, in one byte instead of two, of which a rank has a sixteenth.
TEST(PlanInFp8, GathersMatricesInHalfTheBytes) {
  const std::int64_t matrices = 2 * (2 * kHidden * kHidden + 2 * kKeys * kHidden + 3 * kWide * kHidden);
  const std::int64_t half = 2 * matrices * (kRanksOfAll - 1) / kRanksOfAll;
  EXPECT_EQ(gathered_bytes(planned("", "tensorwise", false)) - gathered_bytes(planned("", "tensorwise", true)), half);
}

TEST(PlanInFp8, OfSharedMatricesGathersTokensInHalfTheBytes) {
  const std::string keys = "tensor_parallel_size: 8\nsequence_parallel: true\n";
  const std::int64_t plain = gathered_bytes(planned(keys, "rowwise"));
  // Two blocks a layer: x in forward, dy in backward, in one byte instead of two; a rank has an eighth of 8192 tokens.
  EXPECT_EQ(plain - gathered_bytes(planned(keys, "tensorwise")), 2 * 2 * 2 * 8192 * kHidden * 7 / 8);
  EXPECT_LT(planned(keys, "tensorwise").time.step_ns, planned(keys, "rowwise").time.step_ns);
}

TEST(PlanInFp8, IsRefusedForADeviceWithoutIt) {
  virtual_time::HardwareProfile without = profile();
  without.name = "older";
  without.matrix.fp8_flops_per_s = 0;
  EXPECT_EQ(test::message_of<ConfigError>([&] { in_fp8(without, "tensorwise", false); }),
            "--fp8-recipe is tensorwise, but device profile 'older' has no products in FP8; plan for a device that has "
            "them, add fp8_flops_per_s and fp8_efficiency to the profile's matrix section, or remove the flag");
}

}  // namespace
}  // namespace loom::plan
