// Promise: a parameter that is cut on another dim than 0 trains bit for bit as one that is cut on dim 0; its boxes, and
//          parts of a parameter on several ranks, go in and out as the whole; cuts that are not even are refused; norms
//          count the parts of all ranks.
// World:   2 and 4 ranks as threads; root and 2 blocks of width 4.
#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/optim/adamw.h"
#include "sharding/full_parameters.h"
#include "tests/support/boxes.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using ::testing::HasSubstr;

constexpr int kBlocks = 2;

int on_dim_1(const std::string&, const Shape& shape) { return shape.ndim() > 1 ? 1 : 0; }

using Values = std::map<std::string, std::vector<double>>;

Values whole_values(nn::Module& model) {
  Values values;
  for_each_full_parameter(
      model, [&](const std::string& path, const Tensor& full) { values[path] = full.to_vector<double>(); });
  return values;
}

struct Trained {
  Values weights;
  std::vector<double> norms;
};

Trained trained(const FullyShardOptions& options, int rank) {
  const auto chain = test::sharded_chain(test::kEvenWidth, kBlocks, options);
  nn::AdamW optimizer(nn::make_parameter_groups(*chain), {.lr = 0.05});
  Trained result;
  for (int step = 0; step < 3; ++step) {
    test::forward_backward(*chain, test::toy_input(4 * step + rank, 3, test::kEvenWidth));
    result.norms.push_back(clip_grad_norm(*chain, 0.01));
    optimizer.step();
    optimizer.zero_grad();
  }
  result.weights = whole_values(*chain);
  return result;
}

class ShardDim : public ::testing::TestWithParam<GatherLayout> {};

TEST_P(ShardDim, TrainsAsDimZeroDoes) {
  for (const int shard_size : {2, 4}) {
    for (const auto& [param, reduce] : {std::pair<std::optional<DType>, std::optional<DType>>{},
                                        {DType::kBF16, DType::kF32},
                                        {DType::kF16, std::nullopt}}) {
      for (const bool offload : {false, true}) {
        test::run_world(4, [&](RankContext& context, comm::World& world) {
          FullyShardOptions rows = test::sharded_over(world, shard_size, GatherLayout::kBuffered);
          rows.policy.param_dtype = param;
          rows.policy.reduce_dtype = reduce;
          if (offload) rows.cpu_offload.emplace();
          FullyShardOptions columns = rows;
          columns.layout = GetParam();
          columns.shard_dim = on_dim_1;
          const Trained by_rows = trained(rows, context.rank()), by_columns = trained(columns, context.rank());
          EXPECT_EQ(by_columns.weights, by_rows.weights) << shard_size << (offload ? " offloaded" : "");
          for (std::size_t step = 0; step < by_rows.norms.size(); ++step) {  // sums in another order
            EXPECT_NEAR(by_columns.norms[step], by_rows.norms[step], 1e-6 * by_rows.norms[step]);
          }
        });
      }
    }
  }
}

TEST_P(ShardDim, KeepsPostForwardShards) {
  test::run_world(4, [](RankContext& context, comm::World& world) {
    FullyShardOptions rows = test::sharded_over_all(world, GetParam());
    rows.reshard_after_forward = ReshardAfterForward::to(2);
    FullyShardOptions columns = rows;
    columns.shard_dim = on_dim_1;
    EXPECT_EQ(trained(columns, context.rank()).weights, trained(rows, context.rank()).weights);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardDim, ::testing::Values(GatherLayout::kBuffered, GatherLayout::kFast),
                         [](const auto& info) { return info.param == GatherLayout::kBuffered ? "Buffered" : "Fast"; });

TEST(ShardDims, BoxesSayWhichColumnsARankHas) {
  test::run_world(2, [](RankContext& context, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.shard_dim = on_dim_1;
    const auto chain = test::sharded_chain(test::kEvenWidth, kBlocks, options);
    const Values whole = whole_values(*chain);
    for (const nn::StateEntry& entry : local_state_dict(*chain)) {
      const Shape& shape = entry.local.shard.global_shape;
      if (shape.ndim() < 2) continue;
      EXPECT_EQ(entry.local.value.shape(), (Shape{test::kEvenWidth, test::kEvenWidth / 2}));
      EXPECT_EQ(entry.local.shard.offset, (Offset{0, context.rank() * test::kEvenWidth / 2}));
      EXPECT_EQ(entry.local.value.to_vector<double>(),
                test::box_of(whole.at(entry.path), shape, entry.local.shard.offset, entry.local.value.shape()));
    }
  });
}

TEST(ShardDims, ThatAreNotThereOrNotEvenAreRefused) {
  test::run_world(3, [](RankContext&, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.shard_dim = on_dim_1;
    test::ToyChain chain(test::kEvenWidth, kBlocks, DType::kF32);
    EXPECT_THAT(
        test::message_of<ConfigError>([&] { test::wrap_chain(chain, options); }),
        HasSubstr("[4, 4] is to be cut on dim 1 over 3 ranks, which do not divide 4; use dim 0, or a factor of"));
    options.shard_dim = [](const std::string&, const Shape&) { return 2; };
    EXPECT_THAT(test::message_of<ConfigError>([&] { test::wrap_chain(chain, options); }),
                HasSubstr("is to be cut on dim 2; use a dim from 0 to "));
  });
}

// As experts are: each of two ranks has half of the rows of every parameter, of which two others shard the columns.
TEST(ShardDims, PartsOfOtherRanksCountInNormsAndMakeTheWhole) {
  test::run_world(4, [](RankContext&, comm::World& world) {
    const auto mesh = comm::DeviceMesh::create(world, {{"one", 1}, {"efsdp", 2}, {"ep", 2}});
    const comm::Axis parts = mesh.axis("ep");
    FullyShardOptions options;
    options.axes = {.shard = mesh.axis("efsdp"), .replicate = mesh.axis("one"), .parts = parts};
    options.shard_dim = on_dim_1;
    const auto chain = std::make_shared<test::ToyChain>(test::kEvenWidth, kBlocks, DType::kF32);
    const auto whole = test::whole_chain(test::kEvenWidth, kBlocks);
    for (auto& [path, slot] : chain->named_slots()) {
      Shape half = slot->shard.global_shape;
      half[0] /= 2;
      Offset offset(static_cast<std::size_t>(half.ndim()), 0);
      offset[0] = parts.rank() * half[0];
      test::give_box(*slot, offset, half);
    }
    test::wrap_chain(*chain, options);
    materialize_shards(*chain);
    nn::init_weights(*chain, test::kToySeed);
    Values expected;
    for (auto& [path, parameter] : whole->named_parameters()) expected[path] = parameter.to_vector<double>();
    EXPECT_EQ(whole_values(*chain), expected);
    EXPECT_NEAR(params_norm(*chain), params_norm(*whole), 1e-6 * params_norm(*whole));
  });
}

}  // namespace
}  // namespace loom::sharding
