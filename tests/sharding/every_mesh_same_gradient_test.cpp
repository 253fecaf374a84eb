// Promise: gradients are the mean over all data, whatever the mesh: HSDP 2 x 2, FSDP 4, four replicas and one rank
// agree to rounding. World:   4 ranks as threads; root and 3 blocks of width 5 (uneven shards), fp64; rank r sees input
// r.
#include <cmath>
#include <gtest/gtest.h>

#include "sharding/full_parameters.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;

constexpr std::int64_t kWidth = 5;
constexpr int kBlocks = 3;
constexpr double kEpsilon = 0x1p-53;

using Gradients = std::map<std::string, std::vector<double>>;

struct Step {
  Gradients gradients;  // whole
  double norm = 0;
  double norm_after_clip = 0;
};

constexpr double kMaxNorm = 0.01;

// One rank sees the four inputs one after another: the mean of the gradients, and the mean of their magnitudes.
std::pair<Step, Gradients> on_one_rank() {
  Step step;
  Gradients magnitudes;
  run_world(1, [&](RankContext&, comm::World&) {
    const auto chain = test::whole_chain(kWidth, kBlocks, DType::kF64);
    for (int input = 0; input < 4; ++input) {
      test::forward_backward(*chain, test::toy_input(input, 3, kWidth, DType::kF64));
      for (auto& [path, values] : test::gradients(*chain)) {
        step.gradients[path].resize(values.size());
        magnitudes[path].resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          step.gradients[path][i] += values[i] / 4;
          magnitudes[path][i] += std::abs(values[i]) / 4;
        }
      }
      for (const Tensor& parameter : chain->parameters()) parameter.set_grad({});
    }
  });
  double sum = 0;
  for (const auto& [path, values] : step.gradients) {
    for (const double value : values) sum += value * value;
  }
  step.norm = std::sqrt(sum);
  return {step, magnitudes};
}

Step on_mesh(int shard_size) {
  Step step;
  run_world(4, [&](RankContext& context, comm::World& world) {
    const FullyShardOptions options = test::sharded_over(world, shard_size);
    const auto chain = test::sharded_chain(kWidth, kBlocks, options, DType::kF64);
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, kWidth, DType::kF64));
    // Whole gradients through the path that hands over whole parameters: write them over the weights.
    const double norm = clip_grad_norm(*chain, 1e9);
    Gradients own;
    for (auto& [path, parameter] : chain->named_parameters()) own[path] = parameter.grad().to_vector<double>();
    clip_grad_norm(*chain, kMaxNorm);
    const double after = grad_norm(*chain);
    for (auto& [path, parameter] : chain->named_parameters()) {
      if (parameter.numel() > 0) parameter.copy_from(Tensor::from(own[path], parameter.shape()));
    }
    for_each_full_parameter(*chain, [&](const std::string& path, const Tensor& full) {
      if (context.rank() == 0) step.gradients[path] = full.to_vector<double>();
    });
    if (context.rank() == 0) {
      step.norm = norm;
      step.norm_after_clip = after;
    }
  });
  return step;
}

class EveryMesh : public ::testing::TestWithParam<int> {};

TEST_P(EveryMesh, GivesTheGradientsOfOneRank) {
  const auto [expected, magnitudes] = on_one_rank();
  const Step step = on_mesh(GetParam());
  ASSERT_EQ(step.gradients.size(), expected.gradients.size());
  for (const auto& [path, values] : expected.gradients) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      // Both add the same four numbers, 3 roundings each in some order; division by 4 is exact.
      EXPECT_NEAR(step.gradients.at(path)[i], values[i], 2 * 3 * kEpsilon * magnitudes.at(path)[i]) << path << " " << i;
    }
  }
}

TEST_P(EveryMesh, GivesTheGradientNormOfOneRankAndClipsToTheSame) {
  const auto [expected, magnitudes] = on_one_rank();
  double difference = 0;  // |norm(a) - norm(b)| <= norm(a - b)
  for (const auto& [path, values] : magnitudes) {
    for (const double value : values) difference += std::pow(2 * 3 * kEpsilon * value, 2);
  }
  const Step step = on_mesh(GetParam());
  // 100 squares: 100 roundings of each norm.
  EXPECT_NEAR(step.norm, expected.norm, std::sqrt(difference) + 200 * kEpsilon * expected.norm);
  ASSERT_GT(expected.norm, kMaxNorm);
  const double clipped = expected.norm * kMaxNorm / (expected.norm + 1e-6);
  EXPECT_NEAR(step.norm_after_clip, clipped, std::sqrt(difference) + 400 * kEpsilon * clipped);
}

INSTANTIATE_TEST_SUITE_P(ShardsOver, EveryMesh, ::testing::Values(1, 2, 4));

TEST(Clip, BelowTheLimitChangesNothingAndEveryRankHasTheSameNorm) {
  const auto norms = test::of_each_rank(4, [](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(kWidth, kBlocks, test::sharded_over(world, 2), DType::kF64);
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, kWidth, DType::kF64));
    const auto before = test::gradients(*chain);
    const double norm = clip_grad_norm(*chain, 1e9);
    EXPECT_EQ(test::gradients(*chain), before);
    return norm;
  });
  EXPECT_EQ(norms, std::vector<double>(4, norms[0]));
}

}  // namespace
}  // namespace loom::sharding
