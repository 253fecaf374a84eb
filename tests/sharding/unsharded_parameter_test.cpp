// Promise: the unsharded parameter is one object for ever: only its bytes come and go, so what forward saved is whole
//          again in backward.
// World:   2 ranks as threads; a chain of 3 blocks of width 5 (3 and 2 rows), fp64.
#include <gtest/gtest.h>

#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;

class UnshardedParameter : public ::testing::TestWithParam<GatherLayout> {};

TEST_P(UnshardedParameter, IsTheSameTensorStorageAndVersionAfterReshardAndUnshard) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(5, 1, test::sharded_over_all(world, GetParam()), DType::kF64);
    FsdpState::of(*chain)->lazy_init();
    nn::ParamSlot& slot = chain->block(0).weight;
    unshard(chain->block(0));
    const Tensor first = slot.value;
    const Storage* storage = first.storage().get();
    const std::uint64_t version = storage->version();
    const std::vector<double> values = first.to_vector<double>();
    reshard(chain->block(0));
    EXPECT_FALSE(storage->allocated());
    EXPECT_FALSE(slot.value.is_same(first));
    unshard(chain->block(0));
    EXPECT_TRUE(slot.value.is_same(first));
    EXPECT_EQ(slot.value.storage().get(), storage);
    EXPECT_EQ(storage->version(), version);
    EXPECT_EQ(slot.value.to_vector<double>(), values);
  });
}

TEST_P(UnshardedParameter, VerbsMayBeRepeated) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(5, 1, test::sharded_over_all(world, GetParam()), DType::kF64);
    FsdpState::of(*chain)->lazy_init();
    reshard(chain->block(0));
    unshard(chain->block(0));
    unshard(chain->block(0));
    EXPECT_TRUE(FsdpState::of(chain->block(0))->group()->is_unsharded());
    reshard(chain->block(0));
    reshard(chain->block(0));
    EXPECT_TRUE(FsdpState::of(chain->block(0))->group()->is_sharded());
  });
}

// Both ranks see the same rows, so the mean over two ranks is (g + g) / 2 = g, exactly: the bits of unsharded training.
TEST_P(UnshardedParameter, BackwardReadsTheGatheredWeightsAgain) {
  std::vector<std::pair<std::string, std::vector<double>>> whole;
  run_world(1, [&](RankContext&, comm::World&) {
    const auto chain = test::whole_chain(5, 3, DType::kF64);
    test::forward_backward(*chain, test::toy_input(0, 4, 5, DType::kF64));
    whole = test::gradients(*chain);
  });
  ASSERT_EQ(whole.size(), 4u);
  run_world(2, [&](RankContext&, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world, GetParam());
    options.reshard_after_forward = true;
    const auto chain = test::sharded_chain(5, 3, options, DType::kF64);
    test::forward_backward(*chain, test::toy_input(0, 4, 5, DType::kF64));
    const auto shards = test::gradients(*chain);
    ASSERT_EQ(shards.size(), whole.size());
    const Chunk chunk = chunk_of(5, world.rank(), 2);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(shards[i].first, whole[i].first);
      EXPECT_EQ(shards[i].second, test::rows_of(whole[i].second, chunk.row_begin, chunk.rows, 5)) << whole[i].first;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, UnshardedParameter, ::testing::Values(GatherLayout::kBuffered, GatherLayout::kFast),
                         [](const auto& info) { return info.param == GatherLayout::kFast ? "Fast" : "Buffered"; });

}  // namespace
}  // namespace loom::sharding
