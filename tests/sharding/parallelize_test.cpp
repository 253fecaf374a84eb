// Promise: an fsdp2_config.yaml is resolved against a model before anything changes, wrapped bottom-up, and described
//          group by group.
// World:   a world of 4 where a file is resolved (none runs), 2 ranks as threads where models are wrapped.
#include "sharding/parallelize.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using test::run_world;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Fsdp2Config config(const std::string& text) { return parse_fsdp2_config(text, "f.yaml"); }

ResolvedFsdp2Config resolved_of(const std::string& text, int world_size = 4) {
  test::ToyChain chain(6, 4);
  return resolve_fsdp2(chain, config(text), world_size, GatherLayout::kBuffered);
}

std::vector<std::string> groups_in(const ResolvedFsdp2Config& resolved) {
  std::vector<std::string> texts;
  for (const WrappedGroup& group : resolved.groups) texts.push_back(text_of(group));
  return texts;
}

std::string refusal(const std::string& text, int world_size = 4) {
  return message_of<ConfigError>([&] { resolved_of(text, world_size); });
}

TEST(Parallelize, RefusesToForgetRecompute) {
  run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(6, 4);
    const ResolvedFsdp2Config resolved = resolve_fsdp2(
        chain, config("sharding_size: auto\nrecompute_modules: [\"layers.{*}\"]"), 2, GatherLayout::kBuffered);
    EXPECT_EQ(message_of<ConfigError>([&] { parallelize(chain, resolved, world); }),
              "recompute_modules selects 'layers.0' and 3 more of ToyChain, but parallelize() was given no recompute "
              "step; hand in one that calls recompute::checkpoint(), or use models::fully_shard()");
  });
}

TEST(Parallelize, RefusesToForgetTheOffloadOfActivations) {
  run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(6, 4);
    const ResolvedFsdp2Config resolved = resolve_fsdp2(
        chain, config("sharding_size: auto\nactivation_offload_modules: [layers.3]"), 2, GatherLayout::kBuffered);
    EXPECT_EQ(message_of<ConfigError>([&] { parallelize(chain, resolved, world); }),
              "activation_offload_modules selects 'layers.3' of ToyChain, but parallelize() was given no offload step; "
              "hand in one that calls offload::swap_activations(), or use models::fully_shard()");
  });
}

// Behind recompute, in front of shards, once, in the order of the list.
TEST(Parallelize, OffloadsBetweenRecomputeAndShards) {
  run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(6, 3);
    const ResolvedFsdp2Config resolved = resolve_fsdp2(
        chain,
        config("sharding_size: auto\nsub_modules_to_wrap: [\"layers.{*}\"]\nrecompute_modules: [layers.0]\n"
               "activation_offload_modules: [layers.2, \"layers.{0-1}\"]\npin_memory: true"),
        2, GatherLayout::kBuffered);
    int recomputed = 0, offloaded = 0;
    parallelize(
        chain, resolved, world, [&](nn::Module&, const RecomputedModule&) { ++recomputed; },
        [&](nn::Module& model, const std::vector<std::string>& paths, bool pin_memory) {
          EXPECT_EQ(&model, &chain);
          EXPECT_THAT(paths, ElementsAre("layers.2", "layers.0", "layers.1"));
          EXPECT_TRUE(pin_memory);
          EXPECT_EQ(recomputed, 1);
          EXPECT_EQ(FsdpState::of(chain.layers[0]), nullptr);
          ++offloaded;
        });
    EXPECT_EQ(offloaded, 1);
    EXPECT_NE(FsdpState::of(chain.layers[0]), nullptr);
  });
}

// Recompute, then shard, bottom-up: a module that is recomputed is not wrapped yet, and the root comes last.
TEST(Parallelize, RecomputesBeforeItShards) {
  run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(6, 2);
    const ResolvedFsdp2Config resolved = resolve_fsdp2(
        chain,
        config("sharding_size: auto\nsub_modules_to_wrap: [\"layers.{*}\"]\nrecompute_modules: [layers.1, layers.0]\n"
               "use_reentrant: false\nnum_to_forward_prefetch: 1"),
        2, GatherLayout::kBuffered);
    std::vector<std::string> recomputed;
    parallelize(chain, resolved, world, [&](nn::Module& model, const RecomputedModule& choice) {
      EXPECT_EQ(&model, &chain);
      EXPECT_EQ(FsdpState::of(*chain.find(choice.path)), nullptr);
      EXPECT_FALSE(choice.use_reentrant);
      recomputed.push_back(choice.path);
    });
    EXPECT_THAT(recomputed, ElementsAre("layers.0", "layers.1"));
    ASSERT_NE(FsdpState::of(chain), nullptr);
    EXPECT_EQ(FsdpState::of(chain.block(0))->forward_prefetch().size(), 1u);
  });
}

// --- What a file comes to

TEST(ResolvedConfig, ListsWrappedModulesInTheOrderOfRegistrationWhateverTheListsOrder) {
  const auto expected = ElementsAre("layers.0", "layers.1", "layers.2", "layers.3");
  EXPECT_THAT(resolved_of("sub_modules_to_wrap: [\"layers.{*}\"]").wrapped, expected);
  EXPECT_THAT(resolved_of("sub_modules_to_wrap: [layers.3, \"layers.{1,0}\", layers.2, layers.2]").wrapped, expected);
}

TEST(ResolvedConfig, TakesAClassForEveryModuleOfIt) {
  const auto expected = ElementsAre("layers.0", "layers.1", "layers.2", "layers.3");
  EXPECT_THAT(resolved_of("sub_modules_to_wrap: [toy.models.ToyBlock]").wrapped, expected);
  EXPECT_THAT(resolved_of("sub_modules_to_wrap: [ToyBlock]").wrapped, expected);
}

TEST(ResolvedConfig, TakesMeshAndPolicyFromTheFile) {
  const ResolvedFsdp2Config resolved = resolved_of(
      "sharding_size: 2\nparam_dtype: bf16\nreduce_dtype: fp32\ncast_forward_inputs: false\n"
      "reshard_after_forward: false\nnum_to_forward_prefetch: 2\nnum_to_backward_prefetch: 1\n");
  EXPECT_EQ(resolved.layout.replicate, 2);
  EXPECT_EQ(resolved.layout.shard, 2);
  EXPECT_EQ(resolved.options.policy.param_dtype, DType::kBF16);
  EXPECT_EQ(resolved.options.policy.reduce_dtype, DType::kF32);
  EXPECT_EQ(resolved.options.policy.output_dtype, std::nullopt);
  EXPECT_FALSE(resolved.options.policy.cast_forward_inputs);
  EXPECT_EQ(resolved.options.reshard_after_forward, ReshardAfterForward(false));
  EXPECT_EQ(resolved.num_to_forward_prefetch, 2);
  EXPECT_EQ(resolved.num_to_backward_prefetch, 1);
  EXPECT_THAT(resolved.wrapped, IsEmpty());
}

TEST(ResolvedConfig, OfAContainerIsRefused) {
  EXPECT_EQ(refusal("sub_modules_to_wrap:\n  - layers\n"),
            "f.yaml:2:5: sub_modules_to_wrap: 'layers' is a ModuleList and has no forward of its own; wrap its items: "
            "'layers.{*}'");
}

TEST(ResolvedConfig, OfAPatternThatMatchesNothingIsRefusedWithTheNearestPath) {
  EXPECT_EQ(
      refusal("sub_modules_to_wrap:\n  - \"layer.{*}\"\n"),
      "f.yaml:2:5: sub_modules_to_wrap: 'layer.{*}': there is no 'layer' in the model; the nearest path is 'layers'");
}

TEST(ResolvedConfig, WarnsOfAnIndexPastTheEnd) {
  const ResolvedFsdp2Config resolved = resolved_of("sharding_size: auto\nsub_modules_to_wrap:\n  - \"layers.{2-5}\"\n");
  EXPECT_THAT(resolved.wrapped, ElementsAre("layers.2", "layers.3"));
  EXPECT_THAT(resolved.warnings,
              ElementsAre("f.yaml:3:5: sub_modules_to_wrap: 'layers.{2-5}': 'layers' has 4 entries, 0 to 3; "
                          "4-5 skipped"));
}

TEST(ResolvedConfig, OfASizeThatDoesNotDivideTheRanksIsRefused) {
  EXPECT_EQ(refusal("sharding_size: 3"),
            message_of<ConfigError>([] { validate_against_world(config("sharding_size: 3"), 4); }));
}

// A model whose head is its embedding.
class Tied final : public nn::Module {
 public:
  Tied()
      : embed(register_module("embed", std::make_shared<nn::Embedding>(6, 4, 0.5))),
        head(register_module("head", std::make_shared<nn::TiedLinear>(embed.weight))) {}
  std::string_view type_name() const override { return "Tied"; }
  nn::Embedding& embed;
  nn::TiedLinear& head;

 protected:
  nn::Value forward(const nn::Args& args) override { return head(embed(args.tensor(0))); }
};

TEST(ResolvedConfig, ThatWouldSpreadATieOverTwoGroupsIsRefusedNamingBothPathsInTheModel) {
  Tied model;
  EXPECT_EQ(
      message_of<ConfigError>(
          [&] { resolve_fsdp2(model, config("sub_modules_to_wrap: [embed]"), 4, GatherLayout::kBuffered); }),
      "f.yaml:1:22: sub_modules_to_wrap: 'embed.weight' (group 'embed') and 'head.weight' (group of the root) are one "
      "parameter; a tie must stay inside one group: wrap neither module, wrap both as one group, or untie them "
      "(--untie-embeddings-and-output-weights, or tie_word_embeddings: false)");
  EXPECT_NO_THROW(resolve_fsdp2(model, config("{}"), 4, GatherLayout::kBuffered));
}

TEST(ResolvedConfig, ATieMayStayInsideOneGroup) {
  Tied model;
  const ResolvedFsdp2Config resolved =
      resolve_fsdp2(model, config("sub_modules_to_wrap: [[embed, head]]"), 4, GatherLayout::kBuffered);
  EXPECT_THAT(groups_in(resolved), ElementsAre("embed, head"));
}

// --- Groups of several modules

// A listed parent stands before its listed child in both directions.
class Nested final : public nn::Module {
 public:
  Nested()
      : outer(register_module("outer", std::make_shared<test::ToyChain>(6, 1))),
        last(register_module("last", std::make_shared<test::ToyBlock>(6))) {}
  std::string_view type_name() const override { return "Nested"; }
  test::ToyChain& outer;
  test::ToyBlock& last;

 protected:
  nn::Value forward(const nn::Args& args) override { return last(outer(args.tensor(0))); }
};

TEST(Groups, StandInTheOrderOfRegistrationOfTheirFirstModules) {
  const ResolvedFsdp2Config resolved = resolved_of(
      "sub_modules_to_wrap: [layers.3, {modules: [layers.2, layers.0], reshard_after_forward: false}, layers.1]");
  EXPECT_THAT(groups_in(resolved),
              ElementsAre("layers.0, layers.2 (reshard_after_forward: false)", "layers.1", "layers.3"));
  EXPECT_THAT(resolved.wrapped, ElementsAre("layers.0", "layers.2", "layers.1", "layers.3"));
}

TEST(Groups, TheLastEntryThatSelectsAModuleChoosesItsReshard) {
  const ResolvedFsdp2Config resolved = resolved_of(
      "sub_modules_to_wrap: [\"layers.{*}\", {modules: \"layers.{2-3}\", reshard_after_forward: false}, layers.3]");
  EXPECT_THAT(groups_in(resolved),
              ElementsAre("layers.0", "layers.1", "layers.2 (reshard_after_forward: false)", "layers.3"));
}

TEST(Groups, LeaveAModuleInsideAnotherOneToThatOne) {
  Nested model;
  EXPECT_THAT(groups_in(resolve_fsdp2(model, config("sub_modules_to_wrap: [[outer.layers.0, outer, last]]"), 4,
                                      GatherLayout::kBuffered)),
              ElementsAre("outer, last"));
}

TEST(Groups, RefuseAModuleOfTwoEntries) {
  EXPECT_EQ(refusal("sub_modules_to_wrap:\n  - [layers.0, layers.1]\n  - \"layers.{1-2}\"\n"),
            "f.yaml:3:5: sub_modules_to_wrap: 'layers.1' is in the entry of f.yaml:2:6 too, and one of the two is a "
            "group of several modules; leave it in one of them");
  EXPECT_EQ(refusal("sub_modules_to_wrap:\n  - layers.1\n  - [layers.0, layers.1]\n"),
            "f.yaml:3:6: sub_modules_to_wrap: 'layers.1' is in the entry of f.yaml:2:5 too, and one of the two is a "
            "group of several modules; leave it in one of them");
}

// --- Wrapped models

std::vector<std::string> paths_of(const std::vector<FsdpState*>& states, nn::Module& root) {
  std::vector<std::string> paths;
  for (const FsdpState* state : states) {
    for (auto& [path, module] : root.named_modules()) {
      if (FsdpState::of(*module) == state) paths.push_back(path);
    }
  }
  return paths;
}

TEST(Apply, SetsPrefetchListsOfTheNextInTheOrderOfRegistration) {
  run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(6, 4);
    const ResolvedFsdp2Config resolved =
        resolve_fsdp2(chain,
                      config("sharding_size: auto\nsub_modules_to_wrap: [\"layers.{*}\"]\n"
                             "num_to_forward_prefetch: 2\nnum_to_backward_prefetch: 1\n"),
                      2, GatherLayout::kBuffered);
    parallelize(chain, resolved, world);
    const auto forward = [&](nn::Module& module) { return paths_of(FsdpState::of(module)->forward_prefetch(), chain); };
    const auto backward = [&](nn::Module& module) {
      return paths_of(FsdpState::of(module)->backward_prefetch(), chain);
    };
    EXPECT_THAT(forward(chain.layers[0]), ElementsAre("layers.1", "layers.2"));
    EXPECT_THAT(forward(chain.layers[2]), ElementsAre("layers.3"));
    EXPECT_THAT(forward(chain.layers[3]), IsEmpty());
    EXPECT_THAT(backward(chain.layers[3]), ElementsAre("layers.2"));
    EXPECT_THAT(backward(chain.layers[1]), ElementsAre("layers.0"));
    EXPECT_THAT(backward(chain.layers[0]), IsEmpty());
    EXPECT_THAT(forward(chain), IsEmpty());
    EXPECT_THAT(backward(chain), IsEmpty());
  });
}

TEST(Apply, WrapsChildrenBeforeTheirParentsAndPrefetchesInPreOrder) {
  run_world(2, [](RankContext&, comm::World& world) {
    Nested model;
    const ResolvedFsdp2Config resolved =
        resolve_fsdp2(model,
                      config("sharding_size: auto\nsub_modules_to_wrap: [outer, last, outer.layers.0]\n"
                             "num_to_forward_prefetch: 1\n"),
                      2, GatherLayout::kBuffered);
    EXPECT_THAT(resolved.wrapped, ElementsAre("outer", "outer.layers.0", "last"));
    parallelize(model, resolved, world);
    EXPECT_EQ(FsdpState::of(model.outer)->group()->params().size(), 1u);  // its own; the block's are the block's
    EXPECT_EQ(FsdpState::of(model.outer.layers[0])->group()->params().size(), 1u);
    EXPECT_EQ(FsdpState::of(model)->group(), nullptr);
    EXPECT_THAT(paths_of(FsdpState::of(model.outer)->forward_prefetch(), model), ElementsAre("outer.layers.0"));
    EXPECT_THAT(paths_of(FsdpState::of(model.outer.layers[0])->forward_prefetch(), model), ElementsAre("last"));
  });
}

TEST(Apply, WrapsSeveralModulesAsOneGroupWithItsOwnReshardAndOnePlaceInThePrefetchLists) {
  run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(6, 4);
    const ResolvedFsdp2Config resolved = resolve_fsdp2(
        chain,
        config(
            "sharding_size: auto\nroot_reshard_after_forward: false\nnum_to_forward_prefetch: 1\n"
            "sub_modules_to_wrap: [layers.0, {modules: [\"layers.{1-2}\"], reshard_after_forward: false}, layers.3]"),
        2, GatherLayout::kBuffered);
    parallelize(chain, resolved, world);
    const FsdpState* together = FsdpState::of(chain.layers[1]);
    EXPECT_EQ(FsdpState::of(chain.layers[2]), together);
    EXPECT_EQ(together->group()->params().size(), 2u);
    EXPECT_EQ(together->group()->switches().reshard_after_forward, ReshardAfterForward::never());
    EXPECT_EQ(FsdpState::of(chain)->group()->switches().reshard_after_forward, ReshardAfterForward::never());
    EXPECT_EQ(FsdpState::of(chain.layers[0])->group()->switches().reshard_after_forward, ReshardAfterForward::always());
    EXPECT_THAT(FsdpState::of(chain.layers[0])->forward_prefetch(), ElementsAre(together));
    EXPECT_THAT(together->forward_prefetch(), ElementsAre(FsdpState::of(chain.layers[3])));
  });
}

// The blocks of the group's first module are wrapped before it, and those of its second one too.
TEST(Apply, WrapsWhatIsBelowAnyModuleOfAGroupBeforeTheGroup) {
  run_world(2, [](RankContext&, comm::World& world) {
    Nested model;
    const ResolvedFsdp2Config resolved =
        resolve_fsdp2(model, config("sharding_size: auto\nsub_modules_to_wrap: [[outer, last], outer.layers.0]"), 2,
                      GatherLayout::kBuffered);
    parallelize(model, resolved, world);
    EXPECT_EQ(FsdpState::of(model.outer), FsdpState::of(model.last));
    EXPECT_EQ(FsdpState::of(model.outer)->group()->params().size(), 2u);
    EXPECT_EQ(FsdpState::of(model.outer.layers[0])->group()->params().size(), 1u);
  });
}

TEST(Describe, NamesEveryGroupWithItsBytesPaddingReshardAndPrefetch) {
  run_world(2, [](RankContext& context, comm::World& world) {
    test::ToyChain chain(5, 2);
    const ResolvedFsdp2Config resolved =
        resolve_fsdp2(chain,
                      config("sharding_size: auto\nsub_modules_to_wrap: [\"layers.{*}\"]\n"
                             "param_dtype: bf16\nnum_to_forward_prefetch: 1\n"),
                      2, GatherLayout::kBuffered);
    parallelize(chain, resolved, world);
    if (context.rank() != 0) return;
    // 25 elements; 2 ranks x 3 rows x 5 x 2 bytes = 60 bytes gathered (0.06 KiB), 10 of them padding: 16.67 %.
    EXPECT_EQ(describe_groups(chain),
              "1 x 2: shards over 2, replicates over 1\n"
              "group                         parameters  gather KiB   padding  reshard  fwd-pref  bwd-pref\n"
              "(root)                                25         0.1    16.67%     true  implicit  implicit\n"
              "layers.0                              25         0.1    16.67%     true         1  implicit\n"
              "layers.1                              25         0.1    16.67%     true  implicit  implicit\n"
              "(root) owns weight\n");
  });
}

}  // namespace
}  // namespace loom::sharding
