// Promise: torchtitan's overrides are the flags that they mean.
// World:   8 ranks.
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Translation titan(const job::Texts& words) { return translate_titan(words, context_of({})); }

TEST(Torchtitan, OverridesAreFlags) {
  const Translation file =
      titan({"--training.num_tokens_per_microbatch_per_dp_rank", "4096", "--training.max_context_length", "2048",
             "--training.num_tokens_per_train_step=65536", "--training.steps", "10", "--optimizer.lr", "1e-3",
             "--lr_scheduler.min_lr_factor", "0.1", "--parallelism.fsdp_reshard_after_forward", "never",
             "--activation_checkpoint.mode", "full"});
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(flag_in(file, "--seq-length"), "2048");
  EXPECT_EQ(flag_in(file, "--micro-batch-size"), "2");
  EXPECT_EQ(flag_in(file, "--global-batch-size"), "32");
  EXPECT_EQ(flag_in(file, "--train-iters"), "10");
  EXPECT_EQ(flag_in(file, "--min-lr"), "0.0001");
  EXPECT_EQ(flag_in(file, "--lr-warmup-iters"), "200");
  EXPECT_EQ(key_in(file, "reshard_after_forward"), "false");
  EXPECT_EQ(key_in(file, "param_dtype"), "bf16");
  EXPECT_EQ(key_in(file, "recompute_modules"), "[\"model.layers.{*}\"]");
}

TEST(Torchtitan, TheFinalNormAndTheOutputLayerAreOneGroup) {
  const auto groups = [](const char* reshard) {
    const Translation file = titan({"--training.steps", "1", "--parallelism.fsdp_reshard_after_forward", reshard});
    return fmt::format("{} layers {} root {}", key_in(file, "sub_modules_to_wrap"),
                       key_in(file, "reshard_after_forward"), key_in(file, "root_reshard_after_forward"));
  };
  const std::string modules = "[model.embed_tokens, \"model.layers.{*}\", {modules: [model.norm, lm_head], ";
  EXPECT_EQ(groups("default"), modules + "reshard_after_forward: false}] layers true root false");
  EXPECT_EQ(groups("always"), modules + "reshard_after_forward: true}] layers true root false");
  EXPECT_EQ(groups("never"), modules + "reshard_after_forward: false}] layers false root false");
}

TEST(Torchtitan, MatricesAreShared) {
  const auto sized = [](const job::Texts& more) {
    job::Texts words = {"--training.steps", "1", "--parallelism.tensor_parallel_degree", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return titan(words);
  };
  const Translation file = sized({});
  EXPECT_EQ(key_in(file, "tensor_parallel_size"), "2");
  EXPECT_EQ(key_in(file, "sequence_parallel"), "true");
  EXPECT_EQ(key_in(file, "loss_parallel"), "none");
  const Translation off =
      sized({"--parallelism.enable_sequence_parallel", "false", "--parallelism.disable_loss_parallel", "true"});
  EXPECT_EQ(key_in(off, "sequence_parallel"), "none");
  EXPECT_EQ(key_in(off, "loss_parallel"), "false");
  EXPECT_EQ(key_in(sized({"--parallelism.data_parallel_replicate_degree", "2"}), "sharding_size"), "2");
  EXPECT_THAT(message_of<ConfigError>([&] {
                raise_refused(sized({"--parallelism.data_parallel_shard_degree", "8"}));
              }),
              HasSubstr("1 x 8 x 2 is not the 8 ranks; make them equal"));
}

TEST(Torchtitan, WordsChooseRecompute) {
  EXPECT_EQ(key_in(titan({"activation-checkpoint:none", "--training.steps", "1"}), "recompute_modules"), "none");
  EXPECT_EQ(key_in(titan({"activation-checkpoint:selective", "--training.steps", "1"}), "recompute_keep"),
            "selected_ops");
}

TEST(Torchtitan, AsynchronousTensorParallelismIsFourSlices) {
  const job::Texts two = {"--training.steps", "1", "--parallelism.tensor_parallel_degree", "2"};
  job::Texts async = two;
  async.insert(async.end(), {"--parallelism.enable_async_tensor_parallel", "true"});
  EXPECT_EQ(key_in(titan(async), "overlap_slices"), "4");
  EXPECT_EQ(key_in(titan(async), "sequence_parallel"), "true");
  EXPECT_EQ(key_in(titan(two), "overlap_slices"), "none");
}

TEST(Torchtitan, TheDtypeOfTrainingIsThatOfStoredParameters) {
  const auto stored = [](const char* dtype) { return titan({"--training.steps", "1", "--training.dtype", dtype}); };
  EXPECT_EQ(flag_in(stored("bfloat16"), "--params-dtype"), "bf16");
  EXPECT_EQ(flag_in(stored("float32"), "--params-dtype"), "fp32");
  EXPECT_THAT(message_of<ConfigError>([&] { raise_refused(stored("float16")); }),
              HasSubstr("training.dtype is float16; use float32 or bfloat16"));
}

TEST(Torchtitan, TokensThatDoNotDivideAreRefused) {
  EXPECT_THAT(message_of<ConfigError>([] {
                raise_refused(titan({"--training.num_tokens_per_microbatch_per_dp_rank", "3000"}));
              }),
              HasSubstr("it is no multiple of training.max_context_length 2048; make it one"));
}

}  // namespace
}  // namespace loom::dialects
