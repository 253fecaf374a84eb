// Promise: no rank ever holds a sharded parameter whole; first values depend on nothing but seed, path and element; a
//          tensor that nothing wrote is an error that names it.
// World:   1 to 4 ranks as threads; OwnModel of own_models.h.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "models/mixin/fsdp2_mixin.h"
#include "models/mixin/weight_init_mixin.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "sharding/memory.h"
#include "tests/models/own_models.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using test::kOwnWidth;
using test::own_config;
using ::testing::Each;
using ::testing::ElementsAre;

using Values = std::vector<std::pair<std::string, std::vector<float>>>;

// Every whole parameter, gathered.
Values full_values(nn::Module& model) {
  Values values;
  sharding::for_each_full_parameter(
      model, [&](const std::string& path, const Tensor& full) { values.emplace_back(path, full.to_vector<float>()); });
  return values;
}

template <class Model>
std::vector<Values> values_on(int ranks, const std::string& yaml) {
  return test::of_each_rank(ranks, [&](RankContext&, comm::World& world) {
    Model model;
    model.fully_shard(world, own_config(yaml), {.weights = {.seed = 11}});
    return full_values(model);
  });
}

TEST(MetaInit, EveryRankAllocatesItsRowsAndNothingMore) {  // 4 ranks, 6 rows: 2 padded rows on each
  test::run_world(4, [](RankContext&, comm::World& world) {
    device::DeviceMemory& memory = device::Device::current().memory();
    test::OwnModel model;
    EXPECT_EQ(memory.stats().peak_bytes, 0);
    model.fully_shard(world, own_config(test::kWrapLayers), {.layout = sharding::GatherLayout::kBuffered});
    // Of embed, head and 3 x up: 2 x 6 fp32, that is 48 bytes; of 4 biases and 4 norms: 2 fp32. Blocks are of 512
    // bytes.
    constexpr std::int64_t kTensors = 5 + 4 + 4;
    EXPECT_EQ(memory.stats().peak_bytes, kTensors * 512);
    EXPECT_EQ(memory.stats().peak_by_category[sharding::kShard], kTensors * 512);
  });
}

TEST(MetaInit, ValuesDoNotDependOnRanksReplicasOrTheDevice) {
  const Values alone = values_on<test::OwnModel>(1, "sharding_size: 1\n").front();
  EXPECT_THAT(values_on<test::OwnModel>(4, "sharding_size: auto\nsub_modules_to_wrap: ['layers.{*}']\n"), Each(alone));
  EXPECT_THAT(values_on<test::OwnModel>(4, "sharding_size: 2\n"), Each(alone));
  EXPECT_THAT(values_on<test::OwnModel>(3, "sharding_size: auto\noffload_to_cpu: true\n"), Each(alone));
  test::run_world(1, [&](RankContext&, comm::World&) {
    test::OwnModel model;
    init_on_device(model, {.seed = 11});
    EXPECT_EQ(full_values(model), alone);
  });
}

TEST(MetaInit, ALoaderWritesInsteadOfDrawing) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    test::OwnModel model;
    const auto load = [](nn::Module& loaded) {
      for (auto& [path, slot] : loaded.named_slots()) slot->value.fill(0.25);
    };
    model.fully_shard(world, own_config(test::kWrapLayers), {.weights = {.load = load}});
    for (auto& [path, values] : full_values(model)) EXPECT_THAT(values, Each(0.25f)) << path;
  });
}

TEST(MetaInit, ValuesThatAreThereAreKept) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    test::OwnModel model;
    nn::ParamSlot& kept = model.embed.weight;
    kept.value = Tensor::full(kept.value.shape(), DType::kF32, 3).set_requires_grad(true);
    model.fully_shard(world, own_config(test::kWrapLayers));
    EXPECT_THAT(full_values(model).front(), ::testing::Pair("embed.weight", Each(3.0f)));
    EXPECT_THAT(model.norm.weight.value.to_vector<float>(), Each(1.0f));
  });
}

TEST(MetaInit, NothingOnTheMetaDeviceMeansNothingToDo) {
  test::run_world(1, [](RankContext&, comm::World&) {
    test::OwnModel model;
    EXPECT_TRUE(to_empty_if_needed(model));
    EXPECT_FALSE(to_empty_if_needed(model));
    init_on_device(model, {.load = [](nn::Module&) { FAIL() << "the loader ran"; }});
  });
}

// Leaves one parameter out.
class Forgetful final : public test::OwnModel, public WeightInitMixin {
 protected:
  void _init_weights(nn::Module& module, double std) override {
    if (&module != &head) WeightInitMixin::_init_weights(module, std);
  }
};

TEST(MetaInit, AParameterThatNothingWroteIsNamed) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    Forgetful model;
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { model.fully_shard(world, own_config(test::kWrapLayers)); }),
        "parameter 'head.weight' was never written: it has memory and no values; draw it in _init_weights(), fill "
        "it in post_meta_init(), or load it");
  });
}

TEST(MetaInit, ALoaderThatLeavesOneOutIsFoundToo) {
  test::run_world(1, [](RankContext&, comm::World&) {
    test::PlainModel model;
    const auto load = [](nn::Module& loaded) { loaded.named_slots().front().second->value.fill(1); };
    EXPECT_EQ(test::message_of<ConfigError>([&] { init_on_device(model, {.load = load}); }),
              "parameter 'layers.0.norm.weight' was never written: it has memory and no values; draw it in "
              "_init_weights(), fill it in post_meta_init(), or load it");
  });
}

// With a buffer on the meta device.
class WithBuffer final : public test::OwnModel {
 public:
  explicit WithBuffer(bool fills) : fills_(fills) { register_buffer("scale", Tensor::meta({3}, DType::kF32, "scale")); }
  void post_meta_init() override {
    if (fills_) own_buffers().front().value.fill(2);
  }

 private:
  const bool fills_;
};

TEST(MetaInit, PostMetaInitFillsBuffersOfTheMetaDevice) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    WithBuffer model(true);
    model.fully_shard(world, own_config(test::kWrapLayers));
    EXPECT_THAT(model.own_buffers().front().value.to_vector<float>(), ElementsAre(2, 2, 2));
  });
}

TEST(MetaInit, ABufferThatNothingWroteIsNamed) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    WithBuffer model(false);
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { model.fully_shard(world, own_config(test::kWrapLayers)); }),
        "buffer 'scale' was never written: it was on the meta device and has memory now, but no values; fill it in "
        "post_meta_init(), or register it with values");
  });
}

// Such buffers are part of the model's weights: a file has their values, and fresh ones are zeros.
TEST(MetaInit, APersistentBufferBeginsWithZeros) {
  class WithPersistentBuffer final : public test::OwnModel {
   public:
    WithPersistentBuffer() { register_buffer("bias", Tensor::meta({3}, DType::kF32, "bias"), /*persistent=*/true); }
  };
  test::run_world(2, [](RankContext&, comm::World& world) {
    WithPersistentBuffer model;
    model.fully_shard(world, own_config(test::kWrapLayers));
    EXPECT_THAT(model.own_buffers().front().value.to_vector<float>(), ElementsAre(0, 0, 0));
  });
}

TEST(MetaInit, ADryRunHasNoValuesToMiss) {
  test::run_world(2,
                  [](RankContext&, comm::World& world) {
                    test::OwnModel model;
                    EXPECT_TRUE(model.fully_shard(world, own_config(test::kWrapLayers)));
                  },
                  {.dry_run = true});
}

}  // namespace
}  // namespace loom::models
