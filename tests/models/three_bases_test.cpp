// Promise: the migration guide's class header, three bases in one class, works as it is written; a mixin that cannot be
//          reached, and a strategy in the wrong order, are errors that name the class.
// World:   1 and 2 ranks as threads.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "models/hub/config_reader.h"
#include "models/mixin/fsdp2_mixin.h"
#include "models/mixin/multimodal_module.h"
#include "models/mixin/weight_init_mixin.h"
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

// The guide's header. Notes what is called; its weights are 7 by its own rule.
class ThreeBases final : public MultiModalModule, public FSDP2Mixin, public WeightInitMixin {
 public:
  ThreeBases()
      : MultiModalModule("ThreeBases"),
        eye_(register_module("eye", std::make_shared<nn::Linear>(kOwnWidth, kOwnWidth, false, 0.5))),
        head_(register_module("head", std::make_shared<nn::Linear>(kOwnWidth, kOwnWidth, false, 0.5))) {
    register_tower({"vision_tower", {"eye"}});
  }
  std::vector<std::string> called;

  void freeze(const ConfigReader& config) override {
    called.push_back("freeze");
    if (config.flag("freeze_vision", false)) freeze_tower("vision_tower");
  }
  void post_meta_init() override { called.push_back("post_meta_init"); }

 protected:
  void _fully_shard(const sharding::FullyShardOptions& kwargs, const sharding::Fsdp2Config&) override {
    called.push_back("_fully_shard");
    set_fullyshard_modules_to_wrap(*this, {"eye"}, kwargs);
  }
  void _init_weights(nn::Module& module, double) override {
    for (const auto& slot : module.own_parameters()) slot->value.fill(7);
  }
  nn::Value forward_multimodal(const Tensor& input_ids, const Tensor*) override { return head_(eye_(input_ids)); }

 private:
  nn::Child<nn::Linear> eye_, head_;
};

TEST(ThreeBases, AreFoundEachAndTheirHooksCalled) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    ThreeBases model;
    freeze(model, ConfigReader::from_json(R"({"freeze_vision": true})", "config.json"));
    EXPECT_TRUE(fully_shard(model, world, own_config("sharding_size: auto\n")).has_value());
    EXPECT_THAT(model.called, ElementsAre("freeze", "_fully_shard", "post_meta_init"));
    EXPECT_TRUE(model.is_frozen("vision_tower"));
    EXPECT_NE(sharding::FsdpState::of(*model.find("eye")), nullptr);
    EXPECT_THAT(model.parameters().back().to_vector<float>(), ::testing::Each(7.0F));
    EXPECT_NO_THROW(test::forward_backward(model, test::toy_input(0, 4, kOwnWidth)));
  });
}

TEST(ThreeBases, MultiModalModuleAloneFollowsTheFile) {
  class NoMixin final : public MultiModalModule {
   public:
    NoMixin() : MultiModalModule("NoMixin") {
      register_module("eye", std::make_shared<nn::Linear>(kOwnWidth, kOwnWidth, false, 0.5));
    }

   protected:
    nn::Value forward_multimodal(const Tensor& input_ids, const Tensor*) override { return (*find("eye"))(input_ids); }
  };
  test::run_world(2, [](RankContext&, comm::World& world) {
    NoMixin model;
    fully_shard(model, world, own_config("sharding_size: auto\nsub_modules_to_wrap: [eye]\n"));
    EXPECT_NE(sharding::FsdpState::of(*model.find("eye")), nullptr);
  });
}

// --- A mixin that no cast reaches

std::string refusal_of_freezing(nn::Module& model) {
  return test::message_of<ConfigError>([&] { freeze(model, ConfigReader::from_json("{}", "config.json")); });
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winaccessible-base"
#pragma GCC diagnostic ignored "-Wextra"
class HasItTwice final : public test::OwnModel, public FSDP2Mixin {};
#pragma GCC diagnostic pop
class HidesIt final : public test::PlainModel, private FSDP2Mixin {};
class HidesItsInit final : public test::OwnModel, WeightInitMixin {};

TEST(AMixinThatNoCastReaches, IsAnErrorThatNamesTheClass) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    HasItTwice twice;
    const std::string text =
        "OwnModel inherits FSDP2Mixin 2 times, through different bases, so that none of its hooks would be called; "
        "name "
        "it once: leave it out where a base has it already";
    EXPECT_EQ(refusal_of_freezing(twice), text);
    EXPECT_EQ(test::message_of<ConfigError>([&] { fully_shard(twice, world, own_config("sharding_size: 1\n")); }),
              text);
    EXPECT_EQ(test::message_of<ConfigError>([&] { sharded_module(twice); }), text);
    HidesIt hidden;
    EXPECT_EQ(refusal_of_freezing(hidden),
              "OwnModel inherits FSDP2Mixin without public, so that none of its hooks would be called; write 'public "
              "models::FSDP2Mixin' among its bases");
    HidesItsInit hidden_init;
    EXPECT_EQ(test::message_of<ConfigError>([&] { init_on_device(hidden_init, {}); }),
              "OwnModel inherits WeightInitMixin without public, so that none of its hooks would be called; write "
              "'public models::WeightInitMixin' among its bases");
  });
}

// --- Recompute behind sharding

class ShardsFirst final : public test::OwnModel {
 protected:
  void _fully_shard() override {
    set_fullyshard_modules_to_wrap(*this, {"layers.{*}"}, fsdp2_kwargs());
    set_recompute_modules_to_wrap(*this, {"layers.{*}"});
  }
};

TEST(AStrategyThatShardsFirst, IsRefusedToRecompute) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    ShardsFirst model;
    EXPECT_EQ(test::message_of<ConfigError>([&] { model.fully_shard(world, own_config("sharding_size: auto\n")); }),
              "set_recompute_modules_to_wrap: 'layers.0' (OwnBlock) is sharded already; wrap for recompute first, then "
              "shard, so that one gather serves both");
  });
}

}  // namespace
}  // namespace loom::models
