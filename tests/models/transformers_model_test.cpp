// Promise: a Hugging Face folder becomes a model to train with its own weights, sharded by patterns of the inner model.
// World:   1 and 2 ranks as threads; tests/reference/logits/qwen2.
#include "models/hf/transformers_model.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "sharding/fully_shard.h"
#include "tests/models/own_models.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using test::own_config;
using ::testing::HasSubstr;

const std::filesystem::path kFolder = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits/qwen2";
const std::string kWrap = "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}']\n";

Tensor ids() { return Tensor::from(std::vector<std::int32_t>{1, 5, 9, 2}, {1, 4}); }

std::vector<float> logits_of(nn::Module& model) { return model(ids()).tensor().to_vector<float>(); }

std::vector<float> reference_logits() {
  std::vector<float> logits;
  test::run_world(1, [&](RankContext&, comm::World&) {
    const auto model = build_decoder(load_decoder_config(kFolder));
    nn::materialize(*model);
    load_weights(*model, io::HfWeights(kFolder));
    logits = logits_of(*model);
  });
  return logits;
}

TEST(TransformersModel, StartsFromTheFoldersWeightsWhole) {
  const auto expected = reference_logits();
  test::run_world(1, [&](RankContext&, comm::World&) {
    TransformersModel model(kFolder);
    EXPECT_EQ(model.model().type_name(), "Qwen2ForCausalLM");
    init_on_device(model, {});
    EXPECT_EQ(logits_of(model), expected);
  });
}

TEST(TransformersModel, StartsFromTheFoldersWeightsInShards) {
  const auto expected = reference_logits();
  test::run_world(2, [&](RankContext&, comm::World& world) {
    TransformersModel model(kFolder);
    EXPECT_EQ(device::Device::current().memory().stats().peak_bytes, 0);
    EXPECT_TRUE(model.fully_shard(world, own_config(kWrap)));
    EXPECT_EQ(model.resolved_fsdp2_config().wrapped.front(), "model.layers.0");
    EXPECT_NE(sharding::FsdpState::of(model.model()), nullptr);
    EXPECT_EQ(logits_of(model), expected);
  });
}

TEST(TransformersModel, ThroughTheFreeFunctionIsTheSame) {
  const auto expected = reference_logits();
  test::run_world(2, [&](RankContext&, comm::World& world) {
    TransformersModel model(kFolder);
    EXPECT_TRUE(fully_shard(model, world, own_config(kWrap)).has_value());
    EXPECT_EQ(logits_of(model), expected);
  });
}

TEST(TransformersModel, PatternsAreRelativeToTheInnerModel) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    TransformersModel model(kFolder);
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { model.fully_shard(world, own_config("sub_modules_to_wrap: ['model.model.layers.{*}']\n")); }),
                HasSubstr("model.model.layers"));
    EXPECT_EQ(&sharded_module(model), &model.model());
  });
}

TEST(TransformersModel, OnTheMetaDeviceItsValuesAreDrawn) {
  const auto run = [](int ranks) {
    return test::of_each_rank(ranks, [&](RankContext&, comm::World& world) {
      TransformersModel model(kFolder, {.init_model_with_meta_device = true});
      EXPECT_EQ(model.weights(), nullptr);
      model.fully_shard(world, own_config(kWrap), {.weights = {.seed = 4}});
      return logits_of(model);
    });
  };
  const auto alone = run(1).front();
  EXPECT_NE(alone, reference_logits());
  EXPECT_THAT(run(2), ::testing::Each(alone));
}

// An inner model with hooks of its own.
class Freezing final : public test::OwnModel {
 public:
  void freeze(const ConfigReader& config) override {
    if (config.flag("freeze_embed", false)) freeze_modules(*this, {"embed"});
  }
  void post_meta_init() override { ++post_meta_inits; }
  int post_meta_inits = 0;

 protected:
  void _fully_shard() override { set_fullyshard_modules_to_wrap(*this, {"layers.1"}, fsdp2_kwargs()); }
};

ModelHub hub_of_freezing() {
  ModelHub hub;
  hub.add({"freezing"}, [](const ConfigReader&) { return std::make_shared<Freezing>(); });
  return hub;
}

TEST(TransformersModel, FreezesBeforeShardingAndShardsAsTheInnerModelDoes) {
  const auto file =
      test::write_file(test::fresh_folder() / "config.json", R"({"model_id": "freezing", "freeze_embed": true})");
  test::run_world(2, [&](RankContext&, comm::World& world) {
    TransformersModel model(file, {}, hub_of_freezing());
    auto& inner = static_cast<Freezing&>(model.model());
    EXPECT_FALSE(inner.embed.weight.value.requires_grad());
    model.fully_shard(world, own_config("sharding_size: auto\n"));
    EXPECT_FALSE(inner.embed.weight.value.requires_grad());
    EXPECT_NE(sharding::FsdpState::of(*inner.find("layers.1")), nullptr);
    EXPECT_EQ(sharding::FsdpState::of(*inner.find("layers.0")), nullptr);
    EXPECT_EQ(inner.post_meta_inits, 1);
  });
}

TEST(TransformersModel, UnshardedTheInnerModelsHookRunsToo) {
  const auto file = test::write_file(test::fresh_folder() / "config.json", R"({"model_id": "freezing"})");
  test::run_world(1, [&](RankContext&, comm::World&) {
    TransformersModel model(file, {}, hub_of_freezing());
    init_on_device(model, {});
    EXPECT_EQ(static_cast<Freezing&>(model.model()).post_meta_inits, 1);
  });
}

TEST(TransformersModel, AFolderOfAnUnknownModelSaysWhatThereIs) {
  const auto folder = test::fresh_folder();
  test::write_file(folder / "config.json", R"({"architectures": ["Qwen2ForCausalLm"]})");
  const std::string message = test::message_of<ConfigError>([&] { TransformersModel model(folder); });
  EXPECT_THAT(message, ::testing::StartsWith((folder / "config.json").string() +
                                             ": load model from config failed: architectures[0] 'Qwen2ForCausalLm' is "
                                             "not registered; registered are "));
  EXPECT_THAT(message, ::testing::EndsWith("; did you mean 'Qwen2ForCausalLM'?"));
}

}  // namespace
}  // namespace loom::models
