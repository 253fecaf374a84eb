// Promise: a mesh puts rank r where its number says, slowest axis first; an axis holds the ranks that differ in it
//          alone; sizes and names that cannot be are refused with the equation.
// World:   simulated; 48 ranks as pp 2 x dp_replicate 2 x dp_shard 3 x cp 2 x tp 2.

#include "engine/comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::comm {
namespace {

using testing::ElementsAre;

const std::vector<AxisSize> kFive = {{"pp", 2}, {"dp_replicate", 2}, {"dp_shard", 3}, {"cp", 2}, {"tp", 2}};

TEST(AMeshOfFiveAxes, PutsEveryRankWhereItsNumberSays) {
  int rank = 0;
  for (int pp = 0; pp < 2; ++pp) {
    for (int replicate = 0; replicate < 2; ++replicate) {
      for (int shard = 0; shard < 3; ++shard) {
        for (int cp = 0; cp < 2; ++cp) {
          for (int tp = 0; tp < 2; ++tp, ++rank) {
            const auto world = make_simulated_world(rank, 48);
            const DeviceMesh mesh = DeviceMesh::create(*world, kFive);
            EXPECT_THAT(mesh.coordinates(rank), ElementsAre(pp, replicate, shard, cp, tp));
            EXPECT_EQ(mesh.axis("pp").rank(), pp);
            EXPECT_EQ(mesh.axis("dp_replicate").rank(), replicate);
            EXPECT_EQ(mesh.axis("dp_shard").rank(), shard);
            EXPECT_EQ(mesh.axis("cp").rank(), cp);
            EXPECT_EQ(mesh.axis("tp").rank(), tp);
          }
        }
      }
    }
  }
}

// Strides 24, 12, 4, 2, 1; rank 31 is at 1, 0, 1, 1, 1.
TEST(AMeshOfFiveAxes, HasAxesOfTheRanksThatDifferInThemAlone) {
  const auto world = make_simulated_world(31, 48);
  const DeviceMesh mesh = DeviceMesh::create(*world, kFive);
  EXPECT_THAT(mesh.axis("pp").ranks(), ElementsAre(7, 31));
  EXPECT_THAT(mesh.axis("dp_replicate").ranks(), ElementsAre(31, 43));
  EXPECT_THAT(mesh.axis("dp_shard").ranks(), ElementsAre(27, 31, 35));
  EXPECT_THAT(mesh.axis("cp").ranks(), ElementsAre(29, 31));
  EXPECT_THAT(mesh.axis("tp").ranks(), ElementsAre(30, 31));
  EXPECT_EQ(mesh.axis("dp_shard").name(), "dp_shard");
  EXPECT_EQ(mesh.axes(), kFive);
}

TEST(Flatten, MakesOneAxisOfSeveralTheFirstSlowest) {
  const auto world = make_simulated_world(31, 48);
  const DeviceMesh mesh = DeviceMesh::create(*world, kFive);
  const Axis fsdp = mesh.flatten({"dp_shard", "cp"}, "fsdp");
  EXPECT_THAT(fsdp.ranks(), ElementsAre(25, 27, 29, 31, 33, 35));
  EXPECT_EQ(fsdp.rank(), 3);
  EXPECT_EQ(fsdp.name(), "fsdp");
  EXPECT_THAT(mesh.flatten({"pp", "tp"}, "far").ranks(), ElementsAre(6, 7, 30, 31));
  EXPECT_THAT(mesh.flatten({"tp", "pp"}, "turned").ranks(), ElementsAre(6, 30, 7, 31));
  EXPECT_THAT(mesh.flatten({"dp_shard"}, "same").ranks(), ElementsAre(27, 31, 35));
}

TEST(Consecutive, CutsAnAxisIntoPieces) {
  const auto world = make_simulated_world(31, 48);
  const DeviceMesh mesh = DeviceMesh::create(*world, kFive);
  const Axis fsdp = mesh.flatten({"dp_shard", "cp"}, "fsdp");
  EXPECT_THAT(fsdp.consecutive(2, "post_forward").ranks(), ElementsAre(29, 31));
  EXPECT_THAT(fsdp.consecutive(3, "post_forward").ranks(), ElementsAre(31, 33, 35));
  EXPECT_THAT(fsdp.consecutive(1, "post_forward").ranks(), ElementsAre(31));
  EXPECT_EQ(test::message_of<InvariantError>([&] { fsdp.consecutive(4, "post_forward"); }),
            "internal: 4 consecutive ranks, must divide the axis 'fsdp' of 6");
}

TEST(AnAxisOfOneRank, HasAGroupThatGivesBackWhatItIsGiven) {
  const auto world = make_simulated_world(0, 2);
  const DeviceMesh mesh = DeviceMesh::create(*world, {{"dp_replicate", 1}, {"dp_shard", 2}});
  const Axis& replicate = mesh.axis("dp_replicate");
  EXPECT_EQ(replicate.size(), 1);
  EXPECT_THAT(replicate.ranks(), ElementsAre(0));
  std::vector<float> data = {1, 2, 3};
  replicate.group().all_reduce(kHostLane, data.data(), 3, DType::kF32, ReduceOp::premul_sum(0.5), "half");
  EXPECT_THAT(data, ElementsAre(0.5F, 1.0F, 1.5F));
  float full = 0;
  const GatherPart part{data.data(), &full, sizeof full};
  replicate.group().all_gather(kHostLane, {&part, 1}, "one");
  EXPECT_EQ(full, 0.5F);
  EXPECT_NE(replicate.group().share(kHostLane, 100, "segment"), nullptr);
}

TEST(AMesh, PrintsTheEquationThatDoesNotHold) {
  const auto world = make_simulated_world(0, 8);
  EXPECT_EQ(
      test::message_of<ConfigError>([&] {
        DeviceMesh::create(*world, {{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 3}});
      }),
      "mesh dp_replicate 2 x dp_shard 2 x tp 3 = 12, but 8 ranks run; the axes of a mesh multiply to the number of "
      "ranks");
}

TEST(AMesh, RefusesSizesAndNamesThatCannotBe) {
  const auto world = make_simulated_world(0, 4);
  const auto message = [&](std::vector<AxisSize> axes) {
    return test::message_of<ConfigError>([&] { DeviceMesh::create(*world, std::move(axes)); });
  };
  EXPECT_EQ(message({{"dp_shard", 0}}), "axis dp_shard of a mesh is 0, expected 1 or more");
  EXPECT_EQ(message({{"tp", 2}, {"tp", 2}}), "two axes of a mesh are called tp");
  EXPECT_EQ(message({{"tp", 2}, {"", 2}}), "axis 1 of a mesh has no name");
}

TEST(AMesh, NamesItsAxesToWhoAsksForAnother) {
  const auto world = make_simulated_world(0, 4);
  const DeviceMesh mesh = DeviceMesh::create(*world, {{"dp_replicate", 2}, {"dp_shard", 2}});
  EXPECT_EQ(test::message_of<ConfigError>([&] { mesh.axis("shard"); }),
            "the mesh has no axis 'shard'; it has dp_replicate, dp_shard");
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              mesh.flatten({"dp_shard", "dp_shard"}, "twice");
            }),
            "axis 'twice' is made of dp_shard twice");
}

TEST(AnAxisOfNoMesh, CannotBeUsed) {
  EXPECT_EQ(test::message_of<InvariantError>([] { Axis().size(); }),
            "internal: an axis of no mesh is used; take one from DeviceMesh::axis()");
}

}  // namespace
}  // namespace loom::comm
