// Promise: a model derived from MultiModalModule has named towers that are frozen as one, and takes images beside text.
#include "models/mixin/multimodal_module.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using ::testing::ElementsAre;

// A user's model: what it was called with is all that matters here.
class Pair final : public MultiModalModule {
 public:
  Pair() : MultiModalModule("Pair") {
    register_module("eye", std::make_shared<nn::Linear>(2, 2, true, 1.0));
    register_module("mouth", std::make_shared<nn::Linear>(2, 2, false, 1.0));
    register_module("head", std::make_shared<nn::Linear>(2, 2, false, 1.0));
    register_tower({"vision_tower", {"eye"}});
    register_tower({"language_model", {"mouth", "head"}});
  }
  using MultiModalModule::register_tower;

 protected:
  nn::Value forward_multimodal(const Tensor& input_ids, const Tensor* pixel_values) override {
    return input_ids.numel() + (pixel_values == nullptr ? 0 : 100 * pixel_values->numel());
  }
};

std::vector<std::string> trained(nn::Module& model) {
  std::vector<std::string> paths;
  for (auto& [path, parameter] : model.named_parameters()) {
    if (parameter.requires_grad()) paths.push_back(path);
  }
  return paths;
}

TEST(Towers, AreFrozenAndUnfrozenAsOneAtAllTheirPaths) {
  Pair model;
  EXPECT_FALSE(model.is_frozen("language_model"));
  model.freeze_tower("language_model");
  EXPECT_TRUE(model.is_frozen("language_model"));
  EXPECT_THAT(trained(model), ElementsAre("eye.weight", "eye.bias"));
  model.unfreeze_tower("language_model");
  model.freeze_tower("vision_tower");
  EXPECT_THAT(trained(model), ElementsAre("mouth.weight", "head.weight"));
}

TEST(Towers, AreNotFrozenAfterSharding) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    Pair model;
    fully_shard(model, world, sharding::parse_fsdp2_config("sharding_size: 1\n", "f.yaml"));
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { model.freeze_tower("vision_tower"); }),
        "freeze of 'eye' after Pair was sharded: the optimizer and the reduction of gradients may be made already; "
        "freeze in the model's freeze(config), or before fully_shard()");
  });
}

TEST(Towers, ThatDoNotExistAreTheUsersErrorWithTheNamesOfThoseThatDo) {
  Pair model;
  EXPECT_EQ(test::message_of<ConfigError>([&] { model.freeze_tower("vision_towr"); }),
            "Pair has no tower 'vision_towr'; it has vision_tower, language_model; did you mean 'vision_tower'?");
}

TEST(Towers, AtAPathWithoutAModuleOrOfATakenNameAreRefused) {
  Pair model;
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              model.register_tower({"audio_tower", {"ear"}});
            }),
            "Pair registers tower 'audio_tower' at 'ear', where no module is; register the module first");
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              model.register_tower({"vision_tower", {"mouth"}});
            }),
            "Pair registers two towers named 'vision_tower'; give each a name of its own");
}

TEST(MultiModalCall, TakesImagesByPlaceOrByNameOrNoneAtAll) {
  const test::TestRank rank;
  Pair model;
  const Tensor ids = Tensor::host({1, 3}, DType::kI32), pixels = Tensor::zeros({1, 2}, DType::kF32);
  EXPECT_EQ(model(ids).number(), 3);
  EXPECT_EQ(model(ids, pixels).number(), 203);
  EXPECT_EQ(model(ids, nn::Value()).number(), 3);
  EXPECT_EQ(model.call({{ids}, {{"pixel_values", pixels}}}).number(), 203);
}

TEST(MultiModalCall, WithoutTextOrWithTooMuchIsTheUsersError) {
  const test::TestRank rank;
  Pair model;
  const Tensor ids = Tensor::host({1, 3}, DType::kI32), pixels = Tensor::zeros({1, 2}, DType::kF32);
  EXPECT_EQ(test::message_of<ConfigError>([&] { model(); }),
            "Pair was called with 0 positional arguments; give input_ids and, for images, pixel_values");
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              model.call({{ids, pixels}, {{"pixel_values", pixels}}});
            }),
            "Pair was called with 2 positional arguments and pixel_values; give input_ids and, for images, "
            "pixel_values");
}

}  // namespace
}  // namespace loom::models
