// Promise: dim 0 is cut into ceil chunks; every rank stores the same number of rows, and the padding at the tail is
//          zero and never seen - not in the whole parameter, the gradient norm or the optimizer.
// World:   4 ranks as threads; a root of five rows and one block of a single row.
#include <cmath>
#include <gmock/gmock.h>

#include "engine/nn/optim/adamw.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;
using ::testing::Each;
using ::testing::ElementsAre;

std::vector<std::int64_t> rows_per_rank(std::int64_t dim0, int ranks) {
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < ranks; ++rank) rows.push_back(chunk_of(dim0, rank, ranks).rows);
  return rows;
}

TEST(ChunkRule, FourRanksOwnCeilChunks) {
  EXPECT_THAT(rows_per_rank(1, 4), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(rows_per_rank(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(rows_per_rank(9, 4), ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(rows_per_rank(10, 4), ElementsAre(3, 3, 3, 1));
}

TEST(ChunkRule, EightRanksOwnCeilChunks) {
  EXPECT_THAT(rows_per_rank(9, 8), ElementsAre(2, 2, 2, 2, 1, 0, 0, 0));
  EXPECT_THAT(rows_per_rank(10, 8), ElementsAre(2, 2, 2, 2, 2, 0, 0, 0));
  EXPECT_THAT(rows_per_rank(17, 8), ElementsAre(3, 3, 3, 3, 3, 2, 0, 0));
  EXPECT_THAT(rows_per_rank(3, 8), ElementsAre(1, 1, 1, 0, 0, 0, 0, 0));
}

TEST(ChunkRule, ChunksFollowOneAnotherAndAnEmptyOneBeginsAtTheEnd) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(chunk_of(9, rank, 4).padded_rows, 3) << rank;
    EXPECT_EQ(chunk_of(9, rank, 4).row_begin, 3 * rank) << rank;  // 0, 3, 6, 9
  }
  EXPECT_EQ(chunk_of(1, 3, 4), (Chunk{1, 1, 0}));
}

// One row of weights: y = x * scale, [1, D].
class OneRow final : public nn::Module {
 public:
  explicit OneRow(std::int64_t width) : weight(register_parameter("weight", {1, width}, nn::Init::normal(1))) {}
  std::string_view type_name() const override { return "OneRow"; }
  nn::ParamSlot& weight;

 protected:
  nn::Value forward(const nn::Args& args) override { return ops::linear(args.tensor(0), weight.value); }
};

// [R, 5] -> [R, 5] by five rows, then -> [R, 1] by one row.
class FiveAndOne final : public nn::Module {
 public:
  FiveAndOne()
      : five(register_parameter("five", {5, 5}, nn::Init::normal(1))),
        one(register_module("one", std::make_shared<OneRow>(5))) {}
  std::string_view type_name() const override { return "FiveAndOne"; }
  nn::ParamSlot& five;
  OneRow& one;

 protected:
  nn::Value forward(const nn::Args& args) override { return one(ops::linear(args.tensor(0), five.value)); }
};

std::shared_ptr<FiveAndOne> wrapped(comm::World& world) {
  auto model = std::make_shared<FiveAndOne>();
  const FullyShardOptions options = test::sharded_over_all(world);
  fully_shard(model->one, options);
  fully_shard(*model, options);
  materialize_shards(*model);
  nn::init_weights(*model, 3);
  return model;
}

std::vector<const Param*> params_of(nn::Module& model) {
  std::vector<const Param*> params;
  for (const FsdpState* state : FsdpState::collect(model)) {
    for (const auto& param : state->group()->params()) params.push_back(param.get());
  }
  return params;
}

TEST(Padding, EveryRankStoresTheSameRowsAndTheTailIsZeroAfterInitialisation) {
  run_world(4, [](RankContext& context, comm::World& world) {
    const auto model = wrapped(world);
    for (const Param* param : params_of(*model)) {
      EXPECT_EQ(param->padded_shard().shape()[0], param->shape()[0] == 5 ? 2 : 1) << param->path();
      const std::vector<double> values = param->padded_shard().to_vector<double>();
      const std::vector<double> tail(values.begin() + param->shard_elems(), values.end());
      EXPECT_THAT(tail, Each(0.0)) << "rank " << context.rank() << " " << param->path();
    }
  });
}

TEST(Padding, AnEmptyShardHasNoRowsButTheTrailingDims) {
  run_world(4, [](RankContext& context, comm::World& world) {
    const auto model = wrapped(world);
    if (context.rank() != 3) return;
    EXPECT_EQ(model->one.weight.value.shape(), (Shape{0, 5}));
    EXPECT_EQ(model->one.weight.global_shape, (Shape{1, 5}));
    EXPECT_EQ(model->five.value.shape(), (Shape{0, 5}));
  });
}

TEST(Padding, TheUnshardedParameterIsItsRowsAloneOnEveryRank) {
  // Rows drawn by global index: the whole parameter of four ranks is that of one.
  std::vector<float> five;
  std::vector<float> one;
  run_world(1, [&](RankContext&, comm::World&) {
    FiveAndOne whole;
    nn::materialize(whole);
    nn::init_weights(whole, 3);
    five = whole.five.value.to_vector<float>();
    one = whole.one.weight.value.to_vector<float>();
  });
  run_world(4, [&](RankContext&, comm::World& world) {
    const auto model = wrapped(world);
    unshard(*model);
    unshard(model->one);
    EXPECT_EQ(model->five.value.shape(), (Shape{5, 5}));
    EXPECT_EQ(model->five.value.to_vector<float>(), five);
    EXPECT_EQ(model->one.weight.value.shape(), (Shape{1, 5}));
    EXPECT_EQ(model->one.weight.value.to_vector<float>(), one);
  });
}

TEST(Padding, FullParametersAreHandedOverWithoutIt) {
  run_world(4, [](RankContext&, comm::World& world) {
    const auto model = wrapped(world);
    std::vector<std::pair<std::string, Shape>> seen;
    for_each_full_parameter(
        *model, [&](const std::string& path, const Tensor& full) { seen.emplace_back(path, full.shape()); });
    EXPECT_THAT(seen, ElementsAre(std::pair("five", Shape{5, 5}), std::pair("one.weight", Shape{1, 5})));
  });
}

TEST(Padding, IsNotInTheGradientNorm) {
  // Whatever lies in the tail of the gradients' storage, the norm is that of the rows.
  run_world(4, [](RankContext& context, comm::World& world) {
    const auto model = wrapped(world);
    test::forward_backward(*model, test::toy_input(context.rank(), 3, 5));
    double sum = 0;
    for (auto& [path, values] : test::gradients(*model)) {
      for (const double value : values) sum += value * value;
    }
    const auto everyone = world.everyone();
    everyone->all_reduce(comm::kHostLane, &sum, 1, DType::kF64, comm::ReduceOp::sum(), "sum");
    const double norm = grad_norm(*model);
    // 30 squares, added in another order: 30 roundings in double.
    EXPECT_NEAR(norm, std::sqrt(sum), 30 * 2.3e-16 * norm);
    EXPECT_GT(norm, 0);
  });
}

TEST(Padding, TheOptimizerStepLeavesItZeroAndAnEmptyShardAsItIs) {
  run_world(4, [](RankContext& context, comm::World& world) {
    const auto model = wrapped(world);
    nn::AdamW optimizer(model->parameters(), {.lr = 0.1, .weight_decay = 0.5});
    for (int step = 0; step < 2; ++step) {
      test::forward_backward(*model, test::toy_input(context.rank(), 3, 5));
      EXPECT_NO_THROW(optimizer.step());
      optimizer.zero_grad();
    }
    for (const Param* param : params_of(*model)) {
      const std::vector<double> values = param->padded_shard().to_vector<double>();
      EXPECT_THAT(std::vector<double>(values.begin() + param->shard_elems(), values.end()), Each(0.0)) << param->path();
    }
    EXPECT_EQ(model->one.weight.value.numel(), context.rank() == 0 ? 5 : 0);
  });
}

}  // namespace
}  // namespace loom::sharding
