// Promise: layout, executor, compute threads and repetition change no bit of a training run.
// World:   4 ranks as threads; root and 3 blocks of width 70, bf16 computation, fp32 reduction, 3 AdamW steps with
//          clipping.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/nn/optim/adamw.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

struct Result {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::vector<float>> weights;

  bool operator==(const Result&) const = default;
};

std::vector<Result> trained(GatherLayout layout, const test::WorldOptions& run) {
  return test::of_each_rank(
      4,
      [&](RankContext& context, comm::World& world) {
        FullyShardOptions options = test::sharded_over(world, 2, layout);
        options.policy.param_dtype = DType::kBF16;
        options.policy.reduce_dtype = DType::kF32;
        const auto chain = test::sharded_chain(70, 3, options);
        nn::AdamW optimizer(chain->parameters(), {.lr = 0.01});
        Result result;
        for (int step = 0; step < 3; ++step) {
          result.losses.push_back(test::forward_backward(*chain, test::toy_input(4 * step + context.rank(), 40, 70)));
          result.norms.push_back(clip_grad_norm(*chain, 0.001));
          optimizer.step();
          optimizer.zero_grad();
        }
        for (const Tensor& parameter : chain->parameters()) result.weights.push_back(parameter.to_vector<float>());
        return result;
      },
      run);
}

std::vector<Result> reference() { return trained(GatherLayout::kBuffered, {}); }

TEST(SameBits, InTwoRuns) {
  const auto first = reference();
  EXPECT_NE(first[0].losses[0], first[0].losses[2]);
  EXPECT_EQ(reference(), first);
}

TEST(SameBits, InBothGatherLayouts) { EXPECT_EQ(trained(GatherLayout::kFast, {}), reference()); }

TEST(SameBits, UnderBothExecutors) {
  const test::WorldOptions threaded{.executor = device::ExecutorKind::kThreaded};
  EXPECT_EQ(trained(GatherLayout::kBuffered, threaded), reference());
  EXPECT_EQ(trained(GatherLayout::kFast, threaded), reference());
}

TEST(SameBits, WithTwoComputeThreads) {
  try {
    ComputePool().resize(2);
  } catch (const ConfigError&) {
    GTEST_SKIP() << "this build has serial loops";
  }
  EXPECT_EQ(trained(GatherLayout::kFast, {.executor = device::ExecutorKind::kThreaded, .compute_threads = 2}),
            reference());
}

TEST(SameBits, OfTheFirstWeightsWhateverTheNumberOfRanks) {
  const auto whole = [](int ranks, int shard_size) {
    std::vector<std::vector<float>> weights;
    test::run_world(ranks, [&](RankContext& context, comm::World& world) {
      const auto chain = test::sharded_chain(5, 2, test::sharded_over(world, shard_size));
      for_each_full_parameter(*chain, [&](const std::string&, const Tensor& full) {
        if (context.rank() == 0) weights.push_back(full.to_vector<float>());
      });
    });
    return weights;
  };
  const auto one = whole(1, 1);
  EXPECT_EQ(one.size(), 3u);
  EXPECT_EQ(whole(4, 4), one);
  EXPECT_EQ(whole(4, 2), one);
  EXPECT_EQ(whole(3, 3), one);
}

}  // namespace
}  // namespace loom::sharding
