// Promise: gradients are reduced in reduce_dtype, rounded once on their way to the original dtype, and kept between
//          synchronisations in reduce_dtype where one is set, else in the compute dtype.
// World:   2 ranks as threads; one block of width 4, fp32 storage, bf16 computation.
#include <algorithm>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <thread>

#include "engine/device/recorder.h"
#include "sharding/marks.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;

std::shared_ptr<test::ToyBlock> block(comm::World& world, std::optional<DType> param, std::optional<DType> reduce) {
  FullyShardOptions options = test::sharded_over_all(world);
  options.policy.param_dtype = param;
  options.policy.reduce_dtype = reduce;
  auto made = std::make_shared<test::ToyBlock>(4);
  fully_shard(*made, options);
  materialize_shards(*made);
  nn::init_weights(*made, test::kToySeed);
  return made;
}

// The bf16 gradient of the whole weight for input `index`, as a rank computes it before any reduction.
std::vector<float> local_gradient(int index) {
  std::vector<float> gradient;
  run_world(1, [&](RankContext&, comm::World&) {
    test::ToyBlock whole(4);
    nn::materialize(whole);
    nn::init_weights(whole, test::kToySeed);
    const Tensor weight = ops::cast(whole.weight.value.detach(), DType::kBF16);
    weight.set_requires_grad(true);
    whole.weight.value = weight;
    const Tensor input = ops::cast(test::toy_input(index, 2, 4), DType::kBF16);
    autograd::backward(ops::mean(whole(input)));
    gradient = weight.grad().to_vector<float>();
  });
  return gradient;
}

float as_bf16(float value) { return static_cast<float>(bf16(value)); }

void backward(test::ToyBlock& block, int index) { autograd::backward(ops::mean(block(test::toy_input(index, 2, 4)))); }

TEST(ReduceDtype, Fp32OverBf16ComputationAddsInFp32AndIsNotRoundedToBf16) {
  const std::vector<float> a = local_gradient(0);
  const std::vector<float> b = local_gradient(1);
  bool rounding_would_show = false;
  run_world(2, [&](RankContext& context, comm::World& world) {
    const auto model = block(world, DType::kBF16, DType::kF32);
    backward(*model, context.rank());
    const std::vector<float> grad = model->weight.value.grad().to_vector<float>();
    EXPECT_EQ(model->weight.value.grad().dtype(), DType::kF32);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const std::size_t k = i + static_cast<std::size_t>(context.rank()) * 8;  // 2 rows of 4
      const float mean = (a[k] + b[k]) / 2;
      EXPECT_EQ(grad[i], mean);
      if (context.rank() == 0) rounding_would_show = rounding_would_show || as_bf16(mean) != mean;
    }
  });
  EXPECT_TRUE(rounding_would_show);
}

TEST(ReduceDtype, LeftOutIsThatOfTheGradientAndRoundsToIt) {
  const std::vector<float> a = local_gradient(0);
  const std::vector<float> b = local_gradient(1);
  run_world(2, [&](RankContext& context, comm::World& world) {
    const auto model = block(world, DType::kBF16, std::nullopt);
    backward(*model, context.rank());
    EXPECT_EQ(model->weight.value.grad().dtype(), DType::kF32) << "shard gradients have the original dtype";
    const std::vector<float> grad = model->weight.value.grad().to_vector<float>();
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const std::size_t k = i + static_cast<std::size_t>(context.rank()) * 8;
      EXPECT_EQ(grad[i], as_bf16((a[k] + b[k]) / 2));
    }
  });
}

// --- Gradients that somebody else holds

// Tells what happens to the gradient of its weight.
class WatchedBlock : public test::ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  std::function<void(const Tensor& grad)> on_gradient;

 protected:
  nn::Value forward(const nn::Args& args) override {
    if (on_gradient) {
      weight.value.register_post_accumulate_hook([this](const Tensor& leaf) { on_gradient(leaf.grad()); });
    }
    return ToyBlock::forward(args);
  }
};

class TwoBlocks : public nn::Module {
 public:
  TwoBlocks()
      : first(register_module("first", std::make_shared<WatchedBlock>(4))),
        second(register_module("second", std::make_shared<WatchedBlock>(4))) {}
  std::string_view type_name() const override { return "TwoBlocks"; }
  WatchedBlock& first;
  WatchedBlock& second;

 protected:
  nn::Value forward(const nn::Args& args) override { return second(first(args.tensor(0))); }
};

// Shard gradients of `second`, all ranks'. With `writes`, rank 0 keeps that gradient and overwrites it before rank 1
// comes to the reduction.
std::vector<float> gradients_of_second(bool writes) {
  std::vector<float> all(16);
  const auto train = [&](RankContext& context, comm::World& world) {
    auto model = std::make_shared<TwoBlocks>();
    const FullyShardOptions options = test::sharded_over_all(world);
    fully_shard(model->first, options);
    fully_shard(model->second, options);
    fully_shard(*model, options);
    materialize_shards(*model);
    nn::init_weights(*model, test::kToySeed);
    Tensor kept;
    if (writes && context.rank() == 0) {
      model->second.on_gradient = [&](const Tensor& grad) { kept = grad; };
      model->first.on_gradient = [&](const Tensor&) { kept.fill(1e30); };
    } else if (writes) {
      model->second.on_gradient = [](const Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
    }
    autograd::backward(ops::mean((*model)(test::toy_input(context.rank(), 2, 4))));
    const std::vector<float> own = model->second.weight.value.grad().to_vector<float>();
    std::copy(own.begin(), own.end(), all.begin() + context.rank() * 8);
  };
  run_world(2, train, {.executor = device::ExecutorKind::kThreaded});
  return all;
}

TEST(HeldGradient, IsReducedAsItWasWhenItsGroupWasComplete) {
  EXPECT_EQ(gradients_of_second(true), gradients_of_second(false));
}

// --- Synchronisation off

TEST(GradientSync, OffCommunicatesNothingAndOnReducesEverythingOnce) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const auto model = block(world, std::nullopt, std::nullopt);
    const device::Recorder recorder(device::Device::current());
    set_requires_gradient_sync(*model, false);
    backward(*model, context.rank());
    const auto reductions = [&] {
      return std::ranges::count(recorder.recording().marks, sharding::kReduceScatterMark, &device::Mark::kind);
    };
    EXPECT_EQ(reductions(), 0);
    EXPECT_FALSE(model->weight.value.grad().defined());
    set_requires_gradient_sync(*model, true);
    backward(*model, 2 + context.rank());
    EXPECT_EQ(reductions(), 1);
    EXPECT_TRUE(model->weight.value.grad().defined());
  });
}

// Three micro-batches g0, g1, g2 of one rank, synchronised at the last.
std::vector<float> accumulated(std::optional<DType> reduce) {
  std::vector<float> grad(16);
  run_world(2, [&](RankContext& context, comm::World& world) {
    const auto model = block(world, DType::kBF16, reduce);
    for (int i = 0; i < 3; ++i) {
      set_requires_gradient_sync(*model, i == 2);
      backward(*model, i);  // the same on both ranks: (s + s) / 2 = s
    }
    const std::vector<float> own = model->weight.value.grad().to_vector<float>();
    std::copy(own.begin(), own.end(), grad.begin() + context.rank() * 8);
  });
  return grad;
}

TEST(GradientSync, OffAccumulatesInFp32WhereReduceDtypeIsFp32) {
  const std::vector<float> g[] = {local_gradient(0), local_gradient(1), local_gradient(2)};
  const std::vector<float> sum = accumulated(DType::kF32);
  bool bf16_would_show = false;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float expected = (g[0][i] + g[1][i]) + g[2][i];
    EXPECT_EQ(sum[i], expected) << i;
    bf16_would_show = bf16_would_show || as_bf16(as_bf16(g[0][i] + g[1][i]) + g[2][i]) != expected;
  }
  EXPECT_TRUE(bf16_would_show);
}

TEST(GradientSync, OffAccumulatesInTheComputeDtypeWhereReduceDtypeIsLeftOut) {
  const std::vector<float> g[] = {local_gradient(0), local_gradient(1), local_gradient(2)};
  const std::vector<float> sum = accumulated(std::nullopt);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_EQ(sum[i], as_bf16(as_bf16(g[0][i] + g[1][i]) + g[2][i])) << i;
  }
}

TEST(GradientSync, OnceOverThreeMicroBatchesIsTheSumOfThreeReductions) {
  run_world(2, [](RankContext& context, comm::World& world) {
    std::vector<std::vector<double>> sums;
    for (const bool every : {true, false}) {
      const auto model = block(world, DType::kF64, std::nullopt);
      for (int i = 0; i < 3; ++i) {
        set_requires_gradient_sync(*model, every || i == 2);
        backward(*model, 2 * i + context.rank());
      }
      sums.push_back(model->weight.value.grad().to_vector<double>());
    }
    // fp64 until the cast to fp32; adding in fp32 after each of 3 reductions rounds 3 + 2 times.
    double largest = 0;
    for (const double value : sums[0]) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < sums[0].size(); ++i) EXPECT_NEAR(sums[0][i], sums[1][i], 8 * 0x1p-24 * (largest + 1));
  });
}

}  // namespace
}  // namespace loom::sharding
