// Promise: a model with the mixin is sharded by the file in four steps that can each be overridden; a model without it
//          goes the same way; freezing comes first and lasts.
// World:   1 and 4 ranks as threads; OwnModel of own_models.h.
#include "models/mixin/fsdp2_mixin.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/optim/adamw.h"
#include "models/hub/config_reader.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"
#include "tests/models/own_models.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using test::kOwnWidth;
using test::own_config;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> wrapped_paths(nn::Module& model) {
  std::vector<std::string> paths;
  for (auto& [path, module] : model.named_modules()) {
    if (sharding::FsdpState::of(*module) != nullptr) paths.push_back(path);
  }
  return paths;
}

std::vector<std::string> recomputed_paths(nn::Module& model) {
  std::vector<std::string> paths;
  for (auto& [path, module] : model.named_modules()) {
    if (recompute::is_checkpointed(*module)) paths.push_back(path);
  }
  return paths;
}

std::vector<std::vector<double>> losses_and_gradients(nn::Module& model) {
  std::vector<std::vector<double>> found{{test::forward_backward(model, test::toy_input(0, 4, kOwnWidth))}};
  for (auto& [path, gradient] : test::gradients(model)) found.push_back(gradient);
  return found;
}

// Notes its hooks in order.
class Noting final : public test::OwnModel {
 public:
  std::vector<std::string> steps;
  void freeze(const ConfigReader& config) override {
    steps.push_back("freeze");
    if (config.flag("freeze_embed", false)) freeze_modules(*this, {"embed"});
  }
  void post_meta_init() override { steps.push_back("post_meta_init"); }

 protected:
  void _pre_fully_shard(comm::World& world, const sharding::Fsdp2Config& config, const Fsdp2Options& options) override {
    steps.push_back("_pre_fully_shard");
    OwnModel::_pre_fully_shard(world, config, options);
  }
  void _fully_shard(const sharding::FullyShardOptions& kwargs, const sharding::Fsdp2Config& config) override {
    steps.push_back("_fully_shard");
    OwnModel::_fully_shard(kwargs, config);
  }
  void _post_fully_shard(const Fsdp2Options& options) override {
    steps.push_back("_post_fully_shard");
    OwnModel::_post_fully_shard(options);
  }
};

TEST(FullyShard, RunsItsStepsInOrderAndSaysTrue) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    Noting model;
    freeze(model, ConfigReader::from_json("{}", "config.json"));
    EXPECT_TRUE(model.fully_shard(world, own_config(test::kWrapLayers)));
    EXPECT_THAT(model.steps,
                ElementsAre("freeze", "_pre_fully_shard", "_fully_shard", "_post_fully_shard", "post_meta_init"));
  });
}

TEST(FullyShard, ReadsTheFileAtAPath) {
  const auto file = test::write_file(test::fresh_folder() / "fsdp2_config.yaml", test::kWrapLayers);
  test::run_world(1, [&](RankContext&, comm::World& world) {
    test::OwnModel model;
    EXPECT_TRUE(model.fully_shard(world, file));
    EXPECT_EQ(model.fsdp2_config().file_name, file.string());
    EXPECT_THAT(wrapped_paths(model), ElementsAre("", "layers.0", "layers.1", "layers.2"));
  });
}

TEST(FullyShard, DoesWhatTheFileSays) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    test::OwnModel model;
    model.fully_shard(world, own_config("sub_modules_to_wrap: ['layers.{*}', head]\nrecompute_modules: ['layers.{1-2}']"
                                        "\nuse_reentrant: false\nnum_to_forward_prefetch: 2\n"));
    EXPECT_THAT(wrapped_paths(model), ElementsAre("", "layers.0", "layers.1", "layers.2", "head"));
    EXPECT_THAT(recomputed_paths(model), ElementsAre("layers.1", "layers.2"));
    EXPECT_THAT(sharding::FsdpState::of(*model.find("layers.0"))->forward_prefetch(),
                ElementsAre(sharding::FsdpState::of(*model.find("layers.1")),
                            sharding::FsdpState::of(*model.find("layers.2"))));
    EXPECT_NO_THROW(losses_and_gradients(model));
  });
}

TEST(FullyShard, OfAModelWithoutTheMixinGivesTheSameShards) {
  const auto run = [](bool with_mixin) {
    return test::of_each_rank(4, [&](RankContext&, comm::World& world) {
      const std::shared_ptr<test::PlainModel> model =
          with_mixin ? std::make_shared<test::OwnModel>() : std::make_shared<test::PlainModel>();
      const auto plan = fully_shard(*model, world, own_config(test::kWrapLayers), {.weights = {.seed = 5}});
      EXPECT_THAT(plan->wrapped, ElementsAre("layers.0", "layers.1", "layers.2"));
      return losses_and_gradients(*model);
    });
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(FullyShard, IsRefusedForAFileThatDoesNotFitTheModel) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    test::OwnModel model;
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { model.fully_shard(world, own_config("sub_modules_to_wrap: ['layer.{*}']\n")); }),
                HasSubstr("f.yaml:1:23: sub_modules_to_wrap"));
    EXPECT_THAT(wrapped_paths(model), IsEmpty());
  });
}

// A strategy of its own, with arguments.
class WithArguments final : public test::OwnModel {
 protected:
  void _fully_shard(const sharding::FullyShardOptions& kwargs, const sharding::Fsdp2Config& config) override {
    set_recompute_modules_to_wrap(*this, {"layers.{*}"}, config.use_reentrant);
    set_fullyshard_modules_to_wrap(*this, {"layers.{0,2}"}, kwargs);
    set_modules_to_prefetch(*this, {"layers.{0,2}"}, 1, 0);
  }
};

// The same without, reading what the mixin keeps.
class WithoutArguments final : public test::OwnModel {
 protected:
  void _fully_shard() override {
    set_recompute_modules_to_wrap(*this, {"layers.{*}"}, fsdp2_config().use_reentrant);
    set_fullyshard_modules_to_wrap(*this, {"layers.{0,2}"}, fsdp2_kwargs());
    set_modules_to_prefetch(*this, {"layers.{0,2}"}, 1, 0);
  }
};

// Adds to what the file says.
class AddsToTheFile final : public test::OwnModel {
 protected:
  void _fully_shard() override {
    set_recompute_modules_to_wrap(*this, {"layers.1"}, false);
    OwnModel::_fully_shard();
  }
};

template <class Model>
void check_own_strategy() {
  test::run_world(4, [](RankContext&, comm::World& world) {
    Model model;
    EXPECT_TRUE(model.fully_shard(world, own_config("sharding_size: auto\nuse_reentrant: false\n")));
    EXPECT_THAT(wrapped_paths(model), ElementsAre("", "layers.0", "layers.2"));
    EXPECT_THAT(recomputed_paths(model), ElementsAre("layers.0", "layers.1", "layers.2"));
    EXPECT_THAT(sharding::FsdpState::of(*model.find("layers.0"))->forward_prefetch(),
                ElementsAre(sharding::FsdpState::of(*model.find("layers.2"))));
    EXPECT_NO_THROW(losses_and_gradients(model));
  });
}

TEST(OverridePoint, TakesAStrategyWithArguments) { check_own_strategy<WithArguments>(); }
TEST(OverridePoint, TakesAStrategyWithoutArguments) { check_own_strategy<WithoutArguments>(); }

TEST(OverridePoint, MayNotLeaveOutTheRecomputeThatFlagsAskFor) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    auto config = own_config("use_reentrant: false\n");
    config.recompute_by_path = {{.path = "layers.0.up", .use_reentrant = false}};
    WithArguments model;
    EXPECT_EQ(test::message_of<ConfigError>([&] { model.fully_shard(world, config); }),
              fmt::format("_fully_shard of {} left out the recompute of 'layers.0.up' that flags ask for; call "
                          "models::recompute_module() for each of resolved_fsdp2_config().recomputed in it, or remove "
                          "the flags",
                          model.type_name()));
    AddsToTheFile adds;
    EXPECT_TRUE(adds.fully_shard(world, config));
    EXPECT_THAT(recomputed_paths(adds), ElementsAre("layers.0.up", "layers.1"));
  });
}

TEST(OverridePoint, MayAddToWhatTheFileSays) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    AddsToTheFile model;
    model.fully_shard(world, own_config(test::kWrapLayers));
    EXPECT_THAT(wrapped_paths(model), ElementsAre("", "layers.0", "layers.1", "layers.2"));
    EXPECT_THAT(recomputed_paths(model), ElementsAre("layers.1"));
  });
}

class ForgetsTheRoot final : public test::OwnModel {
 protected:
  void _fully_shard() override { sharding::fully_shard(layers[0], fsdp2_kwargs()); }
};

TEST(OverridePoint, MustWrapTheModelItself) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    ForgetsTheRoot model;
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { model.fully_shard(world, own_config("sharding_size: auto\n")); }),
        "_fully_shard of OwnModel left the model itself unwrapped, and what no wrapped module owns unsharded; end "
        "it with set_fullyshard_modules_to_wrap(model, patterns, fsdp2_kwargs) or sharding::fully_shard(model, "
        "fsdp2_kwargs)");
  });
}

class Unwilling final : public test::OwnModel {
 public:
  bool fully_shard(comm::World&, const sharding::Fsdp2Config&, const Fsdp2Options&) override { return false; }
};

TEST(FullyShard, AnAnswerOfFalseReachesTheCaller) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    Unwilling model;
    EXPECT_FALSE(fully_shard(model, world, own_config("sharding_size: auto\n")).has_value());
  });
}

TEST(FullyShard, TheFileIsNotToBeAskedForBefore) {
  test::OwnModel model;
  EXPECT_EQ(test::message_of<ConfigError>([&] { model.fsdp2_config(); }),
            "fsdp2_config() and fsdp2_kwargs() are called before fully_shard(); call them in _fully_shard() or later");
}

class NoModule final : public FSDP2Mixin {};

TEST(FullyShard, AMixinAloneIsNoModel) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    NoModule model;
    EXPECT_EQ(test::message_of<ConfigError>([&] { model.fully_shard(world, own_config("sharding_size: 1\n")); }),
              "a class inherits FSDP2Mixin without nn::Module; write 'class M : public nn::Module, public "
              "FSDP2Mixin'");
  });
}

// Statement 36: freeze() runs before sharding, and its effect survives in the shards.
TEST(Freeze, LastsInTheShardsAndTheOptimizerSeesTheRestOnly) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    Noting model;
    freeze(model, ConfigReader::from_json(R"({"freeze_embed": true})", "config.json"));
    model.fully_shard(world, own_config(test::kWrapLayers));
    EXPECT_FALSE(model.embed.weight.value.requires_grad());
    EXPECT_TRUE(model.head.weight.value.requires_grad());
    losses_and_gradients(model);
    EXPECT_FALSE(model.embed.weight.value.grad().defined());
    EXPECT_TRUE(model.head.weight.value.grad().defined());
    const auto before = model.embed.weight.value.to_vector<float>();
    nn::AdamW optimizer(model.parameters(), {.lr = 0.1});
    optimizer.step();
    EXPECT_EQ(model.embed.weight.value.to_vector<float>(), before);
  });
}

TEST(Freeze, AfterShardingIsRefused) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    Noting model;
    model.fully_shard(world, own_config(test::kWrapLayers));
    const std::string rest =
        " after OwnModel was sharded: the optimizer and the reduction of gradients may be made already; freeze in the "
        "model's freeze(config), or before fully_shard()";
    EXPECT_EQ(test::message_of<ConfigError>([&] { freeze_modules(model, {"embed"}); }), "freeze of 'embed'" + rest);
    EXPECT_EQ(test::message_of<ConfigError>([&] { freeze(model, ConfigReader::from_json("{}", "config.json")); }),
              "freeze of OwnModel" + rest);
  });
}

sharding::ResolvedFsdp2Config plan_of(nn::Module& model, const std::string& text) {
  return sharding::resolve_fsdp2(model, own_config(text), /*world_size=*/1, sharding::GatherLayout::kBuffered);
}

TEST(RecomputeModules, AreResolvedLikeTheWrappedOnes) {
  test::PlainModel model;
  const auto plan = plan_of(
      model, "sub_modules_to_wrap: ['layers.{*}']\nrecompute_modules: ['layers.{2,0}', 'layers.0', 'layers.1.up']\n");
  using sharding::RecomputedModule;
  EXPECT_THAT(plan.recomputed,
              ElementsAre(RecomputedModule{"layers.0"}, RecomputedModule{"layers.1.up"}, RecomputedModule{"layers.2"}));
  const std::string not_reentrant = "recompute_modules: ['layers.{*}']\nuse_reentrant: false\n";
  EXPECT_THAT(plan_of(model, not_reentrant + "recompute_keep: selected_ops\nrecompute_every: 2\n").recomputed,
              ElementsAre(RecomputedModule{"layers.1", false, sharding::RecomputeKeep::kSelectedOps}));
  auto by_program = own_config(not_reentrant + "recompute_every: 3\n");
  const RecomputedModule added{.path = "layers.0.up", .part = sharding::RecomputedPart::kNorms};
  by_program.recompute_by_path = {added};
  EXPECT_THAT(sharding::resolve_fsdp2(model, by_program, 1, sharding::GatherLayout::kBuffered).recomputed,
              ElementsAre(RecomputedModule{"layers.2", false}, added));
  EXPECT_THAT(plan_of(model, "use_reentrant: false\n").recomputed, IsEmpty());
}

TEST(RecomputeModules, MayStandForTheirChildren) {
  test::PlainModel model;
  using sharding::RecomputedModule;
  EXPECT_THAT(plan_of(model, "recompute_modules: ['layers.{0,2}']\nrecompute_children: true\n").recomputed,
              ElementsAre(RecomputedModule{"layers.0.norm"}, RecomputedModule{"layers.0.up"},
                          RecomputedModule{"layers.2.norm"}, RecomputedModule{"layers.2.up"}));
  EXPECT_THAT(plan_of(model,
                      "recompute_modules: ['layers.{*}']\nrecompute_children: true\nrecompute_every: 2\n"
                      "use_reentrant: false\nrecompute_keep: attention\n")
                  .recomputed,
              ElementsAre(RecomputedModule{"layers.1.norm", false, sharding::RecomputeKeep::kAttention},
                          RecomputedModule{"layers.1.up", false, sharding::RecomputeKeep::kAttention}));
  EXPECT_EQ(test::message_of<ConfigError>(
                [&] { plan_of(model, "recompute_modules: ['layers.1.up']\nrecompute_children: true\n"); }),
            "f.yaml:2:21: recompute_children is true, and 'layers.1.up' (a Linear) of recompute_modules has no module "
            "below it; remove the key, or list the modules whose children are to be recomputed");
}

TEST(RecomputeModules, WhatDoesNotGoTogetherIsRefused) {
  test::PlainModel model;
  EXPECT_EQ(test::message_of<ConfigError>(
                [&] { plan_of(model, "recompute_modules: ['layers.{*}']\nrecompute_keep: selected_ops\n"); }),
            "f.yaml:2:17: recompute_keep is selected_ops, and use_reentrant is true, which keeps no results of "
            "operators; write use_reentrant: false");
  EXPECT_EQ(test::message_of<ConfigError>(
                [&] { plan_of(model, "recompute_modules: ['layers.{0,2}']\nrecompute_every: 3\n"); }),
            "f.yaml:2:18: recompute_every is 3, and recompute_modules selects 2 modules, so none is recomputed; use at "
            "most 2");
}

TEST(RecomputeModules, AContainerIsRefused) {
  test::PlainModel model;
  EXPECT_EQ(test::message_of<ConfigError>([&] { plan_of(model, "recompute_modules: [layers]\n"); }),
            "f.yaml:1:21: recompute_modules: 'layers' is a ModuleList and has no forward of its own; wrap its items: "
            "'layers.{*}'");
}

}  // namespace
}  // namespace loom::models
