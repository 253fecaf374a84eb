// Promise: a simulated world gives every rank the groups that real worlds give (conformance.h), whatever its size, and
//          makes this rank's alone.
// World:   each rank of 1, 2, 6 and 16 by itself; rank 4000 of 4096.

#include "engine/comm/simulated/simulated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <tuple>

#include "engine/comm/mesh.h"
#include "engine/core/error.h"
#include "tests/comm/conformance.h"

namespace loom::comm {
namespace {

class SimulatedRanks : public testing::TestWithParam<std::tuple<int, conformance::Case>> {};

TEST_P(SimulatedRanks, ComeIntoGroups) {
  const auto& [ranks, promise] = GetParam();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto world = make_simulated_world(rank, ranks);
    promise.run(*world);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, SimulatedRanks,
                         testing::Combine(testing::Values(1, 2, 6, 16),
                                          testing::ValuesIn(conformance::grouping_cases())),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) + "_on_" +
                                  std::to_string(std::get<0>(info.param));
                         });

TEST(ASimulatedWorld, TakesItsPeersToBeAlike) {
  const auto group = make_simulated_world(1, 4)->everyone();
  std::vector<float> data{1.5f, -2.0f};
  group->all_reduce(kHostLane, data.data(), 2, DType::kF32, ReduceOp::max(), "largest");
  EXPECT_EQ(data, (std::vector<float>{1.5f, -2.0f}));
  group->all_reduce(kHostLane, data.data(), 2, DType::kF32, ReduceOp::sum(), "sum");
  EXPECT_EQ(data, (std::vector<float>{6.0f, -8.0f}));
}

TEST(ASimulatedWorld, ListsTheGroupsThatHaveCommunicated) {
  const auto used = std::make_shared<UsedGroups>();
  const auto world = make_simulated_world(0, 4, used);
  const DeviceMesh mesh = DeviceMesh::create(*world, {{"rows", 2}, {"columns", 2}, {"one", 1}});
  const auto everyone = world->everyone(), again = world->everyone("again");
  EXPECT_TRUE(used->all().empty());
  mesh.axis("columns").group().barrier(kHostLane, "once");
  mesh.axis("columns").group().barrier(kHostLane, "twice");
  again->broadcast(kHostLane, nullptr, 0, 0, "first");
  everyone->send_recv(kHostLane, 1, {}, 3, {}, "second");
  mesh.axis("one").group().barrier(kHostLane, "alone");
  ASSERT_EQ(used->all().size(), 2u);
  EXPECT_THAT(used->all()[0].ranks, testing::ElementsAre(0, 1));
  EXPECT_THAT(used->all()[0].names, testing::ElementsAre("columns"));
  EXPECT_THAT(used->all()[1].ranks, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(used->all()[1].names, testing::ElementsAre("again", "world"));
}

TEST(ASimulatedWorld, AsksNobodyAndNeedsTheMembers) {
  const auto world = make_simulated_world(1, 4);
  EXPECT_THAT(
      [&] { world->split(0, 0, "part", {}); },
      testing::ThrowsMessage<InvariantError>(
          "internal: a simulated world cannot ask who is in group 'part'; give its members, rank 1 among them"));
}

// Counts the splits that a mesh asks for, and the members it names.
class CountingWorld final : public World {
 public:
  CountingWorld(int rank, int size) : world_(make_simulated_world(rank, size)) {}
  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  std::shared_ptr<ProcessGroup> split(int color, int key, std::string name, std::span<const int> members) override {
    ++splits;
    members_named += members.size();
    return world_->split(color, key, std::move(name), members);
  }
  void fail(const std::string& reason) noexcept override { world_->fail(reason); }

  int splits = 0;
  std::size_t members_named = 0;

 private:
  const std::unique_ptr<World> world_;
};

TEST(ALargeMesh, MakesOneGroupAnAxisAndNoneForAxesOfOneRank) {
  CountingWorld world(4000, 4096);
  const DeviceMesh mesh =
      DeviceMesh::create(world, {{"pp", 1}, {"dp_replicate", 64}, {"dp_shard", 8}, {"cp", 1}, {"tp", 8}});
  EXPECT_EQ(world.splits, 3);
  EXPECT_EQ(world.members_named, 64u + 8u + 8u);
  EXPECT_THAT(mesh.coordinates(4000), testing::ElementsAre(0, 62, 4, 0, 0));
  EXPECT_THAT(mesh.axis("tp").ranks(), testing::ElementsAre(4000, 4001, 4002, 4003, 4004, 4005, 4006, 4007));
}

}  // namespace
}  // namespace loom::comm
