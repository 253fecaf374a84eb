// Promise: parameters in flight take no more than PyTorch FSDP2's peaks, whatever the number of blocks.
// World:   2 ranks as threads, dry run: bytes are accounted and not computed. Blocks of 256 x 256 fp32 under a root
//          without parameters.
//
// Letters  U = 256 KiB, one block's whole parameter; k, groups prefetched. An input is one row: an activation is 1 KiB,
//          of which all together (at most 4 a block) stay far below U.
#include <gtest/gtest.h>

#include "sharding/memory.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using device::MemCategory;
using device::MemStats;

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kU = kWidth * kWidth * 4;
constexpr std::int64_t kActivation = kWidth * 4;

// The blocks one after another.
class Blocks final : public nn::Module {
 public:
  explicit Blocks(int count) : layers(register_module("layers", std::make_shared<nn::ModuleList>())) {
    for (int i = 0; i < count; ++i) layers.append(std::make_shared<test::ToyBlock>(kWidth));
  }
  std::string_view type_name() const override { return "Blocks"; }
  nn::ModuleList& layers;

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor h = args.tensor(0);
    for (std::size_t i = 0; i < layers.size(); ++i) h = layers[i](h);
    return h;
  }
};

struct Setting {
  int blocks = 10;
  GatherLayout layout = GatherLayout::kBuffered;
  std::size_t forward_prefetch = 0;
  std::size_t backward_prefetch = 0;
  bool reshard_after_forward = true;
  std::optional<DType> param_dtype = std::nullopt;
  std::optional<DType> reduce_dtype = std::nullopt;
};

// Bytes of parameters, gradients and communication at a peak.
std::int64_t in_flight(const MemStats& stats) {
  std::int64_t sum = 0;
  for (const MemCategory category : {kGatherBuffer, MemCategory::kParameter, MemCategory::kGradient, kReduceBuffer}) {
    sum += stats.by_category_at_peak[category];
  }
  return sum;
}

struct Peaks {
  std::int64_t forward = 0;   // parameters in flight at the peak
  std::int64_t backward = 0;  // everything above what there was before the step
  std::int64_t left = 0;      // in flight after the step
};

Peaks peaks(const Setting& s) {
  Peaks result;
  test::run_world(2,
                  [&](RankContext& context, comm::World& world) {
                    FullyShardOptions options = test::sharded_over_all(world, s.layout);
                    options.reshard_after_forward = s.reshard_after_forward;
                    options.policy.param_dtype = s.param_dtype;
                    options.policy.reduce_dtype = s.reduce_dtype;
                    Blocks model(s.blocks);
                    for (std::size_t i = 0; i < model.layers.size(); ++i) fully_shard(model.layers[i], options);
                    fully_shard(model, options);
                    for (std::size_t i = 0; i < model.layers.size(); ++i) {
                      std::vector<nn::Module*> next;
                      std::vector<nn::Module*> previous;
                      for (std::size_t k = 1; k <= s.forward_prefetch && i + k < model.layers.size(); ++k)
                        next.push_back(&model.layers[i + k]);
                      for (std::size_t k = 1; k <= s.backward_prefetch && k <= i; ++k)
                        previous.push_back(&model.layers[i - k]);
                      set_modules_to_forward_prefetch(model.layers[i], next);
                      set_modules_to_backward_prefetch(model.layers[i], previous);
                    }
                    materialize_shards(model);
                    const Tensor input = Tensor::zeros({1, kWidth}, DType::kF32);
                    input.set_requires_grad(true);
                    device::DeviceMemory& memory = device::Device::current().memory();
                    const std::int64_t before = memory.stats().total_bytes;
                    memory.reset_peaks();
                    const Tensor loss = ops::mean(model(input));
                    const MemStats forward = memory.stats();
                    memory.reset_peaks();
                    autograd::backward(loss);
                    const MemStats backward = memory.stats();
                    if (context.rank() != 0) return;
                    result.forward = in_flight(forward);
                    result.backward = backward.peak_bytes - before;
                    result.left = backward.total_bytes - before;
                  },
                  {.dry_run = true});
  return result;
}

// What all activations of a step come to at most: 4 a block (input cast, product, tanh, gradient) and a few at the
// ends.
std::int64_t activations(int blocks) { return (4 * blocks + 8) * kActivation; }

TEST(MemoryInForward, IsThreeBlocksWithoutPrefetchAndWithOne) {
  // live parameters + own gather buffer + the neighbour's gather buffer
  EXPECT_EQ(peaks({.forward_prefetch = 0}).forward, 3 * kU);
  EXPECT_EQ(peaks({.forward_prefetch = 1}).forward, 3 * kU);
}

TEST(MemoryInForward, IsTwoBlocksMoreThanWhatIsPrefetchedFromTwoOn) {
  EXPECT_EQ(peaks({.forward_prefetch = 2}).forward, 4 * kU);
  EXPECT_EQ(peaks({.forward_prefetch = 3}).forward, 5 * kU);
}

TEST(MemoryInForward, OfTheFastLayoutIsTheLiveBlockAndWhatIsPrefetched) {
  EXPECT_EQ(peaks({.layout = GatherLayout::kFast, .forward_prefetch = 0}).forward, kU);
  EXPECT_EQ(peaks({.layout = GatherLayout::kFast, .forward_prefetch = 1}).forward, 2 * kU);
  EXPECT_EQ(peaks({.layout = GatherLayout::kFast, .forward_prefetch = 2}).forward, 3 * kU);
}

TEST(MemoryInForward, WithoutReshardingIsAllBlocksAndTheBuffers) {
  EXPECT_EQ(peaks({.layout = GatherLayout::kFast, .reshard_after_forward = false}).forward, 10 * kU);
  EXPECT_LE(peaks({.reshard_after_forward = false}).forward, (10 + 2) * kU);
}

TEST(MemoryInForward, OfAHundredBlocksIsThatOfTen) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    EXPECT_EQ(peaks({.blocks = 100, .layout = layout}).forward, peaks({.blocks = 10, .layout = layout}).forward);
  }
}

TEST(MemoryInBackward, IsAtMostFourBlocksAndTheFinishedShardGradients) {
  // parameters + next gather buffer + unsharded gradients + input of the last reduction
  const std::int64_t shard_gradients = 10 * kU / 2;
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    EXPECT_LE(peaks({.layout = layout}).backward, 4 * kU + shard_gradients + activations(10));
  }
}

TEST(MemoryInBackward, WithAPrefetchOfTwoIsAtMostFiveBlocks) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    EXPECT_LE(peaks({.layout = layout, .backward_prefetch = 2}).backward, 5 * kU + 10 * kU / 2 + activations(10));
  }
}

TEST(MemoryInBackward, WithoutReshardingIsAtMostAllBlocksAndTwo) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    EXPECT_LE(peaks({.layout = layout, .reshard_after_forward = false}).backward, 12 * kU + activations(10));
  }
}

TEST(MemoryInBackward, InBf16WithFp32ReductionIsAtMostFiveBlocksOfBf16AndTheShardGradients) {
  const std::int64_t u = kU / 2;  // bf16
  const std::int64_t shard_gradients = 10 * kU / 2;
  EXPECT_LE(peaks({.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32}).backward,
            5 * u + shard_gradients + kU / 2 + activations(10));
}

TEST(MemoryInBackward, OfAHundredBlocksIsThatOfTenAndTheirGradientShards) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    const std::int64_t more =
        peaks({.blocks = 100, .layout = layout}).backward - peaks({.blocks = 10, .layout = layout}).backward;
    EXPECT_NEAR(static_cast<double>(more), 90.0 * kU / 2, static_cast<double>(activations(90)));
  }
}

TEST(MemoryAfterAStep, IsTheShardGradientsAlone) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    EXPECT_NEAR(static_cast<double>(peaks({.layout = layout}).left), 10.0 * kU / 2, 4.0 * kActivation);
  }
}

}  // namespace
}  // namespace loom::sharding
