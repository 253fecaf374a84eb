// Promise: gradients and their norm are those of all data, whatever the mesh: HSDP 2 x 2, FSDP 4, four replicas, groups
//          of one model over different axes and one rank agree to rounding.
// World:   4 ranks as threads; root and 3 blocks of width 5 (uneven shards), fp64; rank r sees input r.
#include <cmath>
#include <functional>
#include <gtest/gtest.h>

#include "sharding/full_parameters.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;

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
    const auto chain = test::whole_chain(test::kOddWidth, kBlocks, DType::kF64);
    for (int input = 0; input < 4; ++input) {
      test::forward_backward(*chain, test::toy_input(input, 3, test::kOddWidth, DType::kF64));
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

// How the four ranks share a chain.
struct Way {
  const char* name;
  std::function<void(test::ToyChain& chain, comm::World& world)> wrap;
};

Way shards_over(const char* name, int ranks) {
  return {name, [ranks](test::ToyChain& chain, comm::World& world) {
            test::wrap_chain(chain, test::sharded_over(world, ranks));
          }};
}

// Blocks: HSDP 2 x 2, FSDP 4, four replicas. Root: the axes of block 0 the other way round.
void wrap_over_different_axes(test::ToyChain& chain, comm::World& world) {
  const auto mesh = comm::DeviceMesh::create(world, {{"one", 1}, {"dp_replicate", 2}, {"dp_shard", 2}});
  const comm::Axis one = mesh.axis("one");
  const comm::Axis all = mesh.flatten({"dp_replicate", "dp_shard"}, "all");
  const FsdpAxes hsdp = FsdpAxes::of(mesh);
  const auto wrap = [](nn::Module& module, const FsdpAxes& axes) {
    FullyShardOptions options;
    options.axes = axes;
    fully_shard(module, options);
  };
  wrap(chain.layers[0], hsdp);
  wrap(chain.layers[1], {.shard = all, .replicate = one});
  wrap(chain.layers[2], {.shard = one, .replicate = all});
  wrap(chain, {.shard = hsdp.replicate, .replicate = hsdp.shard});
}

const Way kWays[] = {shards_over("FourReplicas", 1),
                     shards_over("TwoByTwo", 2),
                     shards_over("OverFour", 4),
                     {"OverDifferentAxes", wrap_over_different_axes}};

Step on_four_ranks(const Way& way) {
  Step step;
  run_world(4, [&](RankContext& context, comm::World& world) {
    const auto chain = std::make_shared<test::ToyChain>(test::kOddWidth, kBlocks, DType::kF64);
    way.wrap(*chain, world);
    materialize_shards(*chain);
    nn::init_weights(*chain, test::kToySeed);
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, test::kOddWidth, DType::kF64));
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

class EveryMesh : public ::testing::TestWithParam<Way> {};

TEST_P(EveryMesh, GivesTheGradientsOfOneRank) {
  const auto [expected, magnitudes] = on_one_rank();
  const Step step = on_four_ranks(GetParam());
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
  const Step step = on_four_ranks(GetParam());
  // 100 squares: 100 roundings of each norm.
  EXPECT_NEAR(step.norm, expected.norm, std::sqrt(difference) + 200 * kEpsilon * expected.norm);
  ASSERT_GT(expected.norm, kMaxNorm);
  const double clipped = expected.norm * kMaxNorm / (expected.norm + 1e-6);
  EXPECT_NEAR(step.norm_after_clip, clipped, std::sqrt(difference) + 400 * kEpsilon * clipped);
}

TEST_P(EveryMesh, HasTheSameNormOnEveryRankAndClipsNothingBelowTheLimit) {
  const auto norms = test::of_each_rank(4, [](RankContext& context, comm::World& world) {
    const auto chain = std::make_shared<test::ToyChain>(test::kOddWidth, kBlocks, DType::kF64);
    GetParam().wrap(*chain, world);
    materialize_shards(*chain);
    nn::init_weights(*chain, test::kToySeed);
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, test::kOddWidth, DType::kF64));
    const auto before = test::gradients(*chain);
    const double norm = clip_grad_norm(*chain, 1e9);
    EXPECT_EQ(test::gradients(*chain), before);
    return norm;
  });
  EXPECT_EQ(norms, std::vector<double>(4, norms[0]));
}

INSTANTIATE_TEST_SUITE_P(Ways, EveryMesh, ::testing::ValuesIn(kWays), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loom::sharding
