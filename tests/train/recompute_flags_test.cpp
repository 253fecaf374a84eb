// Promise: the recompute flags of the command line come to what they say beside a fsdp2_config.yaml and without one,
//          and what does not go together says what to write.
// World:   no rank; the flags' options and files as text.
#include "engine/train/recompute_flags.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "models/decoder/decoder.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

using models::RecomputeGranularity;
using models::RecomputeMethod;
using sharding::RecomputedModule;
using sharding::RecomputeKeep;

sharding::Fsdp2Config config_of(const std::string& text) { return sharding::parse_fsdp2_config(text, "f.yaml"); }

std::string refusal(const ParallelOptions& options, sharding::Fsdp2Config config) {
  return test::message_of<ConfigError>([&] { apply_recompute_flags(options, false, &config); });
}

ParallelOptions block_of(std::int64_t layers) {
  ParallelOptions a;
  a.recompute_layers = {
      .granularity = RecomputeGranularity::kFull, .method = RecomputeMethod::kBlock, .num_layers = layers};
  a.megatron_recompute_flags = {"--recompute-granularity", "--recompute-method"};
  return a;
}

std::shared_ptr<nn::Module> two_layers() {
  models::DecoderConfig config;
  config.vocab_size = 8;
  config.hidden_size = config.intermediate_size = config.head_dim = 4;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 1;
  config.max_position_embeddings = 8;
  return models::build_decoder(config);
}

TEST(MegatronsRecomputeFlags, AreRefusedBesideRecomputeModules) {
  EXPECT_EQ(refusal(block_of(1), config_of("sharding_size: auto\nrecompute_modules: ['layers.{*}']\n")),
            "f.yaml:2:1: recompute_modules is given beside --recompute-granularity; remove the flag: the file says "
            "what is recomputed");
  auto without = config_of("sharding_size: auto\n");
  EXPECT_NO_THROW(apply_recompute_flags(block_of(1), false, &without));
  EXPECT_NO_THROW(apply_recompute_flags(block_of(1), false, nullptr));
}

TEST(MegatronsRecomputeFlags, ChooseLayersWithoutReentrancyUnlessTheFileAsksForIt) {
  const auto model = two_layers();
  std::vector<std::string> said;
  const ParallelOptions a = block_of(1);
  const RecomputedModule first{"model.layers.0", false};
  EXPECT_THAT(choose_layers(*model, a, false, nullptr, said), ::testing::ElementsAre(first));
  auto config = config_of("sharding_size: auto\n");
  EXPECT_FALSE(is_reentrant_recompute(a, &config));
  EXPECT_THAT(choose_layers(*model, a, false, &config, said), ::testing::ElementsAre(first));
  config = config_of("use_reentrant: true\n");
  EXPECT_TRUE(is_reentrant_recompute(a, &config));
  EXPECT_FALSE(is_reentrant_recompute({}, &config));
  EXPECT_THAT(choose_layers(*model, a, false, &config, said),
              ::testing::ElementsAre(RecomputedModule{"model.layers.0", true}));
  EXPECT_TRUE(is_reentrant_recompute({}, &(config = config_of("recompute_modules: [a]"))));
  EXPECT_FALSE(is_reentrant_recompute({}, &(config = config_of("recompute_modules: [a]\nuse_reentrant: false"))));
  EXPECT_THAT(choose_layers(*model, {}, false, nullptr, said), ::testing::IsEmpty());
  EXPECT_THAT(said, ::testing::IsEmpty());
}

TEST(RecomputeKeepFlag, ActsOnWhatIsRecomputedWhole) {
  const auto model = two_layers();
  std::vector<std::string> said;
  ParallelOptions a = block_of(2);
  a.recompute_keep = RecomputeKeep::kSelectedOps;
  const RecomputedModule kept{"model.layers.0", false, RecomputeKeep::kSelectedOps};
  EXPECT_EQ(choose_layers(*model, a, false, nullptr, said)[0], kept);
  auto config = config_of("sharding_size: auto\n");
  apply_recompute_flags(a, false, &config);
  EXPECT_EQ(config.recompute_keep, RecomputeKeep::kSelectedOps);
  EXPECT_EQ(choose_layers(*model, a, false, &config, said)[0], kept);
  config = config_of("use_reentrant: true\n");
  apply_recompute_flags(a, false, &config);
  EXPECT_EQ(test::message_of<ConfigError>([&] { choose_layers(*model, a, false, &config, said); }),
            "f.yaml:1:16: use_reentrant is true, which keeps no results of operators, and --recompute-keep is "
            "selected_ops; write use_reentrant: false");
  EXPECT_EQ(refusal(a, config_of("recompute_keep: none\n")),
            "f.yaml:1:1: recompute_keep is given, and --recompute-keep too; keep one of them");
}

TEST(RecomputeKeepAndEveryFlags, WithNothingToActOnAreRefused) {
  ParallelOptions a;
  a.recompute_keep = RecomputeKeep::kSelectedOpsNeeded;
  EXPECT_EQ(refusal(a, config_of("sharding_size: auto\n")),
            "--recompute-keep selected_ops_needed is given, and nothing is recomputed whole; list recompute_modules in "
            "f.yaml, or remove it");
  EXPECT_EQ(test::message_of<ConfigError>([&] { apply_recompute_flags(a, false, nullptr); }),
            "--recompute-keep selected_ops_needed is given, and nothing is recomputed whole; list recompute_modules in "
            "a file for --use-torch-fsdp2 --fsdp2-config-path FILE, or remove it");
  ParallelOptions every = block_of(1);
  every.recompute_every = 2;
  EXPECT_EQ(refusal(every, config_of("sharding_size: auto\n")),
            "--recompute-every 2 is given, and nothing is recomputed by recompute_modules; list recompute_modules in "
            "f.yaml, or remove it");
  // A search tries both.
  auto searched = config_of("sharding_size: auto\n");
  apply_recompute_flags(a, /*is_edited=*/true, &searched);
  EXPECT_EQ(searched.recompute_keep, RecomputeKeep::kSelectedOpsNeeded);
}

TEST(RecomputeEveryFlag, TakesThePlaceOfTheKey) {
  ParallelOptions a;
  a.recompute_every = 2;
  auto config = config_of("recompute_modules: ['layers.{*}']\n");
  apply_recompute_flags(a, false, &config);
  EXPECT_EQ(config.recompute_every, 2);
  EXPECT_EQ(refusal(a, config_of("recompute_modules: ['layers.{*}']\nrecompute_every: 2\n")),
            "f.yaml:2:1: recompute_every is given, and --recompute-every too; keep one of them");
}

}  // namespace
}  // namespace loom::train
