// Promise: a cost becomes the time that the formulas of time_model.h give, on the links its ranks cross.
// World:   the tiny device (tests/support/tiny_profile.h) and variations of it.
#include "engine/virtual_time/time_model.h"

#include <gmock/gmock.h>
#include <numeric>

#include "engine/core/error.h"
#include "tests/support/tiny_profile.h"

namespace loom::virtual_time {
namespace {

using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

using test::tiny_profile;

device::Cost product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::kBF16) {
  return {.flops = 2.0 * static_cast<double>(m * n * k),
          .unit = device::Unit::kMatrix,
          .dtype = dtype,
          .m = m,
          .n = n,
          .k = k};
}

device::Cost attention(std::int64_t heads, std::int64_t seq, std::int64_t head_dim) {
  return {.flops = 2.0 * static_cast<double>(heads * seq * seq * head_dim),
          .unit = device::Unit::kAttention,
          .dtype = DType::kBF16,
          .batch = heads,
          .m = seq,
          .n = seq,
          .k = head_dim};
}

std::vector<int> ranks(int count, int stride = 1) {
  std::vector<int> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = i * stride;
  return all;
}

std::int64_t collective_ns(const HardwareProfile& profile, device::CollectiveKind kind, std::int64_t bytes,
                           const std::vector<int>& group) {
  const TimeModel model(profile);
  return model.collective(kind, bytes, model.shape_of(group)).time_ns;
}

TEST(TimeModel, ElementwiseWorkTakesItsBytes) {
  EXPECT_EQ(TimeModel(tiny_profile()).work_ns("add", {.flops = 10, .read_bytes = 200, .written_bytes = 100}), 300);
}

TEST(TimeModel, ElementwiseWorkOfManyOperationsTakesItsOperations) {
  EXPECT_EQ(TimeModel(tiny_profile()).work_ns("gelu", {.flops = 1000, .read_bytes = 200, .written_bytes = 100}), 1000);
}

// Half the rate at 100 bytes: the ramp adds the time of 100 bytes more.
TEST(TimeModel, MemoryRampsUpOverTheBytes) {
  HardwareProfile profile = tiny_profile();
  profile.memory.streaming_efficiency = 0.5;
  profile.memory.half_rate_bytes = 100;
  EXPECT_EQ(TimeModel(profile).work_ns("add", {.read_bytes = 300}), 2 * (300 + 100));
}

TEST(TimeModel, KernelsMayHaveARateOfTheirOwn) {
  HardwareProfile profile = tiny_profile();
  profile.vector.relative_rate["cast"] = 0.5;
  profile.launch.kernel_launch_ns = 7;
  const TimeModel model(profile);
  EXPECT_EQ(model.work_ns("cast", {.read_bytes = 100, .unit = device::Unit::kCopy}), 7 + 200);
  EXPECT_EQ(model.work_ns("copy", {.read_bytes = 100, .unit = device::Unit::kCopy}), 7 + 100);
}

// 2 * 8 * 8 * 100 FLOP at 2 a ns.
TEST(TimeModel, AProductTakesItsOperationsAtThePeak) {
  EXPECT_EQ(TimeModel(tiny_profile()).work_ns("linear", product(8, 8, 100)), 6400);
}

TEST(TimeModel, AProductOfFewRowsTakesItsBytes) {
  device::Cost cost = product(1, 100, 100);
  cost.read_bytes = 2 * (100 + 100 * 100);
  EXPECT_EQ(TimeModel(tiny_profile()).work_ns("linear", cost), 20200);
}

// 4 cores, tiles of 10 x 10: 50 x 10 fills 5 tiles, two waves of 4; a product of 40 x 10 takes one.
TEST(TimeModel, TilesComeInWaves) {
  HardwareProfile profile = tiny_profile();
  profile.matrix.cores = 4;
  profile.matrix.tiles = {{10, 10}};
  const TimeModel model(profile);
  EXPECT_DOUBLE_EQ(model.matrix_efficiency(40, 10, 1, 0), 1);
  EXPECT_DOUBLE_EQ(model.matrix_efficiency(50, 10, 1, 0), 5.0 / 8);
  EXPECT_DOUBLE_EQ(model.matrix_efficiency(45, 10, 1, 0), 4.5 / 8) << "the last tile is half empty";
  EXPECT_DOUBLE_EQ(model.matrix_efficiency(20, 10, 1, 0), 0.5) << "two of four cores";
}

// 4 experts of 5 rows fill 4 tiles by half, where 20 rows of one product would fill 2.
TEST(TimeModel, ProductsOfABatchShareCoresAndNoTiles) {
  HardwareProfile profile = tiny_profile();
  profile.matrix.cores = 4;
  profile.matrix.tiles = {{10, 10}};
  const TimeModel model(profile);
  EXPECT_DOUBLE_EQ(model.matrix_efficiency(5, 10, 1, 0, 4), 0.5);
  EXPECT_DOUBLE_EQ(model.matrix_efficiency(10, 10, 1, 0, 4), 1);
  EXPECT_DOUBLE_EQ(model.matrix_efficiency(10, 10, 1, 0, 2), 0.5) << "two of four cores";
}

TEST(TimeModel, WithoutQuantisationAWaveCostsItsShare) {
  HardwareProfile profile = tiny_profile();
  profile.matrix.cores = 4;
  profile.matrix.tiles = {{10, 10}};
  profile.matrix.wave_quantisation = 0;
  EXPECT_DOUBLE_EQ(TimeModel(profile).matrix_efficiency(50, 10, 1, 0), 1);
  EXPECT_DOUBLE_EQ(TimeModel(profile).matrix_efficiency(20, 10, 1, 0), 0.5);
}

TEST(TimeModel, TheBestTileIsTaken) {
  HardwareProfile profile = tiny_profile();
  profile.matrix.tiles = {{64, 64}, {16, 16}};
  EXPECT_DOUBLE_EQ(TimeModel(profile).matrix_efficiency(16, 16, 1, 0), 1);
}

TEST(TimeModel, RampsOfDepthTileAndPowerMultiply) {
  HardwareProfile profile = tiny_profile();
  profile.matrix.efficiency = 0.9;
  profile.matrix.tiles = {{8, 8}};
  profile.matrix.half_rate_tile = 4;  // a tile of 8 x 8 reuses 4
  profile.matrix.half_rate_k = 300;
  profile.matrix.power_limit_share = 0.2;
  profile.matrix.power_limit_flops = 1000;
  EXPECT_DOUBLE_EQ(TimeModel(profile).matrix_efficiency(8, 8, 100, 1000), 0.9 * 0.5 * 0.25 * 0.9);
}

// At its own place a point of weight 3 has 3 of 4 votes: the formula's 6400 becomes 6400 * 2^(3/4).
TEST(TimeModel, MeasuredProductsCorrectTheirNeighbourhood) {
  HardwareProfile profile = tiny_profile();
  profile.measured = {.reach = 1, .weight = 3, .products = {{"linear", DType::kBF16, 8, 8, 100, 12800}}};
  const TimeModel model(profile);
  EXPECT_EQ(model.work_ns("linear", product(8, 8, 100)), std::llround(6400 * std::pow(2, 0.75)));
  // One doubling away: exp(-1/2) against 1/3.
  const double weight = std::exp(-0.5);
  EXPECT_EQ(model.work_ns("linear", product(16, 8, 100)),
            std::llround(12800 * std::pow(2, weight / (weight + 1.0 / 3))));
  EXPECT_EQ(model.work_ns("linear_dx", product(8, 8, 100)), 6400) << "another kernel";
  EXPECT_EQ(model.work_ns("linear", product(8, 8, 100, DType::kF32)), 6400) << "another type";
}

TEST(TimeModel, MeasuredAttentionCorrectsItsNeighbourhood) {
  HardwareProfile profile = tiny_profile();
  profile.measured = {
      .reach = 1, .weight = 1e9, .products = {}, .attention = {{"attention", DType::kBF16, 4, 16, 8, 5}}};
  EXPECT_EQ(TimeModel(profile).work_ns("attention", attention(4, 16, 8)), 5);
}

// A third at 64 of sequence, a half at 32 of head_dim; 2 heads of 4 tiles of 16 queries are 8 waves of a core.
TEST(TimeModel, AttentionHasCurvesForForwardAndBackward) {
  HardwareProfile profile = tiny_profile();
  profile.attention.tile = 16;
  profile.attention.forward = {.half_rate_seq = 128};
  profile.attention.backward = {.efficiency = 0.5, .half_rate_head_dim = 32, .half_rate_waves = 24};
  const TimeModel model(profile);
  device::Cost cost = attention(2, 64, 32);
  const auto at_peak = static_cast<std::int64_t>(cost.flops / 2);
  EXPECT_EQ(model.work_ns("attention", cost), 3 * at_peak);
  cost.work = device::WorkKind::kAttentionBackward;
  EXPECT_EQ(model.work_ns("attention_grad", cost), 2 * 2 * 4 * at_peak);
}

TEST(TimeModel, ATypeWithoutAPeakIsAnErrorThatSaysWhatToAdd) {
  HardwareProfile profile = tiny_profile();
  profile.matrix.peak_flops_per_s.erase(DType::kF64);
  const TimeModel model(profile);
  EXPECT_THAT([&] { model.work_ns("linear", product(8, 8, 8, DType::kF64)); },
              ThrowsMessage<DeviceError>(StrEq(
                  "profile 'tiny' has no peak_flops_per_s for fp64; add it to the profile's matrix section, or compute "
                  "in a type that it has")));
}

TEST(TimeModel, HostLinksHaveFourRates) {
  const TimeModel model(tiny_profile());
  const auto time = [&](device::WorkKind work, bool pinned) {
    return model.work_ns(
        "copy",
        {.read_bytes = 100, .written_bytes = 100, .unit = device::Unit::kHostLink, .pinned = pinned, .work = work});
  };
  EXPECT_EQ(time(device::WorkKind::kH2D, true), 100);
  EXPECT_EQ(time(device::WorkKind::kD2H, true), 200);
  EXPECT_EQ(time(device::WorkKind::kH2D, false), 400);
  EXPECT_EQ(time(device::WorkKind::kD2H, false), 800);
}

TEST(TimeModel, TheHostsOwnWorkTakesItsBytes) {
  HardwareProfile profile = tiny_profile();
  profile.host.kernel_ns = 5;
  EXPECT_EQ(TimeModel(profile).host_work_ns({.read_bytes = 60, .written_bytes = 40}), 105);
}

// (N - 1) (a + S / (N B)), twice for an all-reduce.
TEST(TimeModel, ARingPassesEverySharePastEveryMember) {
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0].devices = 8;
  profile.links.levels[0].latency_ns = 10;
  const auto group = ranks(4);
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllGather, 400, group), 3 * (10 + 100));
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kReduceScatter, 400, group), 3 * (10 + 100));
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllReduce, 400, group), 2 * 3 * (10 + 100));
}

// 2 log2(N) (a + S / B) beats the ring's 2 (N - 1) a.
TEST(TimeModel, ASmallAllReduceTakesATree) {
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0].devices = 8;
  profile.links.levels[0].latency_ns = 1000;
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllReduce, 8, ranks(8)), 2 * 3 * (1000 + 8));
}

TEST(TimeModel, HalvingAndDoublingTakesTheLogarithmOfTheSteps) {
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0].devices = 8;
  profile.links.levels[0].latency_ns = 10;
  profile.links.levels[0].algorithm = Algorithm::kDoubling;
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllGather, 800, ranks(8)), 3 * 10 + 700);
}

// a + S / (n B_l): seven links of 1/7 byte/ns; with four members three of them are used.
TEST(TimeModel, AFullMeshMovesAllSharesAtOnce) {
  HardwareProfile profile = tiny_profile();
  LinkLevel& node = profile.links.levels[0];
  node = {.name = "node",
          .devices = 8,
          .topology = Topology::kFullMesh,
          .algorithm = Algorithm::kDirect,
          .latency_ns = 10,
          .bandwidth_bytes_per_s = 1e9};
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllGather, 800, ranks(8)), 10 + 7 * 100);
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllGather, 800, ranks(4)), 10 + 7 * 200);
}

// Messages of 100 bytes at half the rate.
TEST(TimeModel, LinksRampUpOverTheMessage) {
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0].efficiency = 0.5;
  profile.links.levels[0].half_rate_message_bytes = 100;
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllGather, 200, ranks(2)), 100 * 2 * 2);
}

// Two nodes of two. Rails: (M - 1) S / (M n B_x) = 400 / (4 * 0.5); node: (n - 1) S / (n B_i) = 200.
TEST(TimeModel, AGroupOverNodesHasALegOnEachLevel) {
  HardwareProfile profile = tiny_profile();
  const TimeModel model(profile);
  const CollectiveTime time = model.collective(device::CollectiveKind::kAllGather, 400, model.shape_of(ranks(4)));
  ASSERT_EQ(time.legs.size(), 2u);
  EXPECT_EQ(time.legs[0].members, 2);
  EXPECT_DOUBLE_EQ(time.legs[0].time_ns, 200);
  EXPECT_DOUBLE_EQ(time.legs[0].received_bytes, 200);
  EXPECT_DOUBLE_EQ(time.legs[1].time_ns, 200);
  EXPECT_DOUBLE_EQ(time.legs[1].received_bytes, 100);
  EXPECT_EQ(time.levels, 3u);
  EXPECT_EQ(time.time_ns, 400) << "one level after the other";

  profile.links.pipeline_chunks = 4;
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kAllGather, 400, ranks(4)), 200 + 200 / 4)
      << "passed on in pieces";
}

// Two nodes of two: half of 400 bytes stays in the node, and half of that with the rank itself; the other half crosses,
// at half a byte/ns. Nothing is passed on: both at once.
TEST(TimeModel, AnAllToAllUsesAllLevelsAtOnce) {
  const TimeModel model(tiny_profile());
  const CollectiveTime time = model.collective(device::CollectiveKind::kAllToAll, 400, model.shape_of(ranks(4)));
  ASSERT_EQ(time.legs.size(), 2u);
  EXPECT_DOUBLE_EQ(time.legs[0].time_ns, 100);
  EXPECT_DOUBLE_EQ(time.legs[0].received_bytes, 100);
  EXPECT_DOUBLE_EQ(time.legs[1].time_ns, 400);
  EXPECT_DOUBLE_EQ(time.legs[1].received_bytes, 200);
  EXPECT_EQ(time.time_ns, 400);
}

// 100 bytes at a byte/ns in a node, at half a byte/ns between nodes. A ring over both takes as long as its slower link.
TEST(TimeModel, AMessagePassesOneLink) {
  HardwareProfile profile = tiny_profile();
  const auto send_recv = device::CollectiveKind::kSendRecv;
  EXPECT_EQ(collective_ns(profile, send_recv, 100, {0, 1}), 100);
  EXPECT_EQ(collective_ns(profile, send_recv, 100, {1, 2}), 200);
  EXPECT_EQ(collective_ns(profile, send_recv, 100, ranks(4)), 200);
  EXPECT_EQ(collective_ns(profile, send_recv, 100, ranks(1)), 0);
  const TimeModel model(profile);
  EXPECT_DOUBLE_EQ(model.collective(send_recv, 100, model.shape_of(ranks(4))).legs.back().received_bytes, 100);

  profile.links.launch_ns = 5;
  profile.links.levels[0].latency_ns = 10;
  profile.links.levels[0].half_rate_message_bytes = 300;  // a quarter of the rate
  EXPECT_EQ(collective_ns(profile, send_recv, 100, {0, 1}), 5 + 10 + 400);
}

// One of the seven links of 1/7 byte/ns.
TEST(TimeModel, AMessageHasOneLinkOfAFullMesh) {
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0] = {.name = "node",
                             .devices = 8,
                             .topology = Topology::kFullMesh,
                             .algorithm = Algorithm::kDirect,
                             .latency_ns = 10,
                             .bandwidth_bytes_per_s = 1e9};
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kSendRecv, 100, ranks(2)), 10 + 700);
  EXPECT_EQ(collective_ns(profile, device::CollectiveKind::kSendRecv, 100, ranks(4)), 10 + 700);
}

TEST(TimeModel, AGroupPaysOnlyForTheLinksItCrosses) {
  const TimeModel model(tiny_profile());
  EXPECT_THAT(model.shape_of(ranks(2)).members, ElementsAre(2, 1));
  EXPECT_THAT(model.shape_of(ranks(3, 2)).members, ElementsAre(1, 3));  // one of each node
  EXPECT_THAT(model.shape_of({{0, 1, 2}}).members, ElementsAre(2, 2));
  EXPECT_THAT(model.shape_of({{1, 2}}).members, ElementsAre(1, 2)) << "neighbours in different nodes";
  EXPECT_EQ(model.collective(device::CollectiveKind::kAllGather, 300, model.shape_of(ranks(3, 2))).time_ns, 2 * 200);
  EXPECT_EQ(model.collective(device::CollectiveKind::kAllGather, 300, model.shape_of(ranks(1))).time_ns, 0);
}

// Dies in cards of 2, cards in nodes of 4 dies, nodes in supernodes of 8, supernodes in the cluster.
TEST(TimeModel, ThereMayBeManyLevels) {
  HardwareProfile profile = tiny_profile();
  profile.links.levels = {{.name = "card", .devices = 2, .bandwidth_bytes_per_s = 1e9},
                          {.name = "node", .devices = 4, .bandwidth_bytes_per_s = 1e9},
                          {.name = "supernode", .devices = 8, .bandwidth_bytes_per_s = 1e9},
                          {.name = "cluster", .bandwidth_bytes_per_s = 1e9}};
  const TimeModel model(profile);
  EXPECT_THAT(model.shape_of(ranks(24)).members, ElementsAre(2, 2, 2, 3));
  // Each level moves what the nearer ones share out: 240 / 2, 120 / 2, 60 / 2, 30 * 2 / 3.
  EXPECT_EQ(model.collective(device::CollectiveKind::kReduceScatter, 240, model.shape_of(ranks(24))).time_ns,
            120 + 60 + 30 + 20);
}

}  // namespace
}  // namespace loom::virtual_time
