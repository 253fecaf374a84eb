// Promise: what a layer keeps for backward where ranks share matrices is the sum of its tensors, to the byte: those cut
//          by heads and columns are 1/t, those of whole tokens stay, and with sequence parallelism what is between the
//          blocks is 1/t too.
// World:   rank 0 of t ranks; a Llama in bf16 with its fused kernels; layers of several widths.
#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/plan/planner.h"
#include "engine/train/step/marks.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

struct Sizes {
  std::int64_t h = 256, f = 512, a = 8, g = 4, d = 32, s = 512, b = 1;
};

train::TrainSections job(const Sizes& of, int layers, int t, bool sequence) {
  train::TrainSections a = arguments();
  const std::filesystem::path folder = test::fresh_folder();
  a.model.model_config = test::write_file(
      folder / "llama.yaml",
      fmt::format("model_type: llama\nvocab_size: 512\nhidden_size: {}\nintermediate_size: {}\nnum_hidden_layers: {}\n"
                  "num_attention_heads: {}\nnum_key_value_heads: {}\nhead_dim: {}\nmax_position_embeddings: 4096\n"
                  "rms_norm_eps: 1.0e-6\ntie_word_embeddings: false\n",
                  of.h, of.f, layers, of.a, of.g, of.d));
  a.parallel.fsdp2_config_path = test::write_file(
      folder / "fsdp2.yaml",
      fmt::format("sharding_size: auto\nparam_dtype: bf16\ntensor_parallel_size: {}\nsequence_parallel: {}\n"
                  "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{{*}}\", lm_head]\n",
                  t, sequence));
  a.data.seq_length = static_cast<int>(of.s);
  a.data.held_out_fraction = 0;
  a.schedule.micro_batch_size = a.schedule.global_batch_size = static_cast<int>(of.b);
  a.launch.ranks = t;
  a.kernels.set = train::KernelSet::kFast;
  a.kernels.fused = nn::KernelOptions::fast();
  return a;
}

// Activations that are kept when backward begins.
std::int64_t kept_bytes(const Sizes& of, int layers, int t, bool sequence) {
  const train::TrainSections a = job(of, layers, t, sequence);
  const device::Recording run = estimate_step(a, cli::hub_callbacks(a), profile()).run().recording;
  const auto backward = std::ranges::find(run.marks, train::kBackwardMark, &device::Mark::kind);
  std::int64_t bytes = 0;
  for (const device::MemorySample& sample : run.memory) {
    if (sample.entries > backward->entries) break;
    bytes = sample.by_category[device::MemCategory::kActivation];
  }
  return bytes;
}

// n tokens, of which a rank keeps r between the blocks; bf16, fp32 for what norms and attention keep of a row.
std::int64_t by_formula(const Sizes& z, std::int64_t t, bool sequence) {
  constexpr std::int64_t kBf16 = 2, kFp32 = 4;
  const std::int64_t n = z.s * z.b, r = sequence ? n / t : n;
  const std::int64_t norms = 2 * (r * z.h * kBf16 + r * kFp32);   // their inputs, and a root mean square of each row
  const std::int64_t block_inputs = 2 * n * z.h * kBf16;          // what q, k, v and gate, up multiply: gathered
  const std::int64_t rotary = 2 * z.s * z.d * kBf16;              // cosines and sines, cast for the layer
  const std::int64_t attention = 2 * n * z.a * z.d / t * kBf16 +  // q; the result, which o multiplies
                                 2 * n * z.g * z.d / t * kBf16 +  // k, v
                                 n * z.a / t * kFp32;             // log-sum-exps
  const std::int64_t mlp = 3 * n * z.f / t * kBf16;               // gate, up; their product, which down multiplies
  return norms + block_inputs + rotary + attention + mlp;
}

TEST(TensorMemory, OfALayerIsTheSumOfItsTensors) {
  for (const Sizes& sizes : {Sizes{}, Sizes{.h = 512}, Sizes{.f = 1024}, Sizes{.g = 8}, Sizes{.d = 64}, Sizes{.a = 16},
                             Sizes{.s = 1024}, Sizes{.b = 3}}) {
    for (const auto& [t, sequence] : {std::pair{1, false}, {2, false}, {2, true}, {4, false}, {4, true}}) {
      EXPECT_EQ(kept_bytes(sizes, 3, t, sequence) - kept_bytes(sizes, 2, t, sequence), by_formula(sizes, t, sequence))
          << "t " << t << ", sequence parallel " << sequence << ", h " << sizes.h << " f " << sizes.f << " a "
          << sizes.a << " g " << sizes.g << " d " << sizes.d << " s " << sizes.s << " b " << sizes.b;
    }
  }
}

}  // namespace
}  // namespace loom::plan
