// Promise: recompute_modules of a fsdp2_config.yaml makes the modules it lists recomputed, and Megatron's flags for it
// are refused. World:   one rank; the Toy tree of tests/support/schedule_models.h with 3 layers.
#include "engine/train/compose.h"

#include <gmock/gmock.h>

#include "engine/comm/launch.h"
#include "engine/core/error.h"
#include "recompute/checkpoint.h"
#include "tests/support/files.h"
#include "tests/support/schedule_models.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

sharding::Fsdp2Config config_of(const std::string& text) { return sharding::parse_fsdp2_config(text, "f.yaml"); }

sharding::Fsdp2Plan plan_of(nn::Module& model, const std::string& text) {
  return sharding::plan_fsdp2(model, config_of(text), /*world_size=*/1, sharding::GatherLayout::kBuffered);
}

TEST(RecomputeModules, AreResolvedLikeTheWrappedOnes) {
  test::Toy model(3, false);
  const auto plan = plan_of(
      model, "sub_modules_to_wrap: ['layers.{*}']\nrecompute_modules: ['layers.{2,0}', 'layers.0', 'layers.1.up']\n");
  EXPECT_THAT(plan.recomputed, ElementsAre("layers.0", "layers.1.up", "layers.2"));
  EXPECT_TRUE(plan.use_reentrant);
  EXPECT_FALSE(plan_of(model, "use_reentrant: false\n").use_reentrant);
  EXPECT_THAT(plan_of(model, "use_reentrant: false\n").recomputed, IsEmpty());
}

TEST(RecomputeModules, AContainerIsRefused) {
  test::Toy model(3, false);
  EXPECT_EQ(test::message_of<ConfigError>([&] { plan_of(model, "recompute_modules: [layers]\n"); }),
            "f.yaml:1:21: recompute_modules: 'layers' is a ModuleList and has no forward of its own; wrap its items: "
            "'layers.{*}'");
}

TEST(RecomputeModules, AreRecomputedAndTheOthersAreNot) {
  comm::run_ranks(1, {std::chrono::minutes(1)}, [](RankContext& context, comm::World& world) {
    device::Device::install(context, {});
    test::Toy model(3, false);
    apply_fsdp2_config(
        model, plan_of(model, "sub_modules_to_wrap: ['layers.{*}']\nrecompute_modules: ['layers.{1-2}']\n"), world);
    std::vector<std::string> recomputed;
    for (const auto& [path, module] : model.named_modules()) {
      if (recompute::is_checkpointed(*module)) recomputed.push_back(path);
    }
    EXPECT_THAT(recomputed, ElementsAre("layers.1", "layers.2"));
  });
}

TEST(MegatronsRecomputeFlags, AreRefusedWithTheirReplacement) {
  const std::vector<std::string> flags{"--recompute-granularity", "--recompute-method"};
  EXPECT_EQ(test::message_of<ConfigError>([&] { refuse_recompute_flags(flags, nullptr); }),
            "--recompute-granularity is not used here; list recompute_modules in a file for --use-torch-fsdp2 "
            "--fsdp2-config-path FILE");
  const auto without = config_of("sharding_size: auto\n");
  EXPECT_EQ(test::message_of<ConfigError>([&] { refuse_recompute_flags(flags, &without); }),
            "--recompute-granularity is not used with FSDP2; list recompute_modules in f.yaml");
  const auto with = config_of("sharding_size: auto\nrecompute_modules: ['layers.{*}']\n");
  EXPECT_EQ(test::message_of<ConfigError>([&] { refuse_recompute_flags(flags, &with); }),
            "f.yaml:2:1: recompute_modules is given beside --recompute-granularity; remove the flag: the file says "
            "what is recomputed");
}

TEST(MegatronsRecomputeFlags, MayBeAbsent) {
  refuse_recompute_flags({}, nullptr);
  const auto config = config_of("recompute_modules: ['layers.{*}']\n");
  EXPECT_NO_THROW(refuse_recompute_flags({}, &config));
}

}  // namespace
}  // namespace loom::train
