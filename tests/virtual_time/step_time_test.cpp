// Promise: through the whole engine, a step takes the time that formulas give for its prefetch depth, reshard mode and
//          recompute mode, and exposes the communication they say.
// World:   dry runs of rank 0 of 2 or 4; only products (C) and collectives (G) take time
//          (tests/virtual_time/toy_step.h).
#include <gmock/gmock.h>

#include "tests/virtual_time/toy_step.h"

namespace loom::test {
namespace {

using Recompute = ToyStep::Recompute;

constexpr std::int64_t kBlocks = 3;
constexpr std::int64_t C = 30;

virtual_time::Breakdown parts_of(const PlannedStep& plan, const virtual_time::RankTimes& times) {
  return virtual_time::break_down(plan.recording, times, 0, times.end_ns);
}

struct Mode {
  int prefetch;  // both ways; backward's 0 is one ahead
  bool reshard;
  Recompute recompute;
};

std::string words(const ::testing::TestParamInfo<Mode>& info) {
  constexpr const char* kRecompute[] = {"Plain", "Reentrant", "Recorded"};
  return fmt::format("Prefetch{}{}{}", info.param.prefetch, info.param.reshard ? "Reshard" : "Keep",
                     kRecompute[static_cast<int>(info.param.recompute)]);
}

class StepOfAFastHost : public ::testing::TestWithParam<Mode> {
 protected:
  PlannedStep plan_{{.blocks = kBlocks,
                     .reshard_after_forward = GetParam().reshard,
                     .forward_prefetch = GetParam().prefetch,
                     .backward_prefetch = GetParam().prefetch,
                     .recompute = GetParam().recompute}};
  // Products that backward adds: two a block, one of the root; recompute one more a block.
  std::int64_t backward_products() const {
    return 2 * kBlocks + 1 + (GetParam().recompute == Recompute::kNone ? 0 : kBlocks);
  }
};

// G <= C. The host is ahead of the device, so gathers are early whatever the depth. Forward exposes the first gather.
// Backward exposes the last block's, unless it was kept: the root's hides behind the end of forward, but the next may
// begin only when the root's has been copied out, on the compute stream. And it exposes the last reduction.
TEST_P(StepOfAFastHost, HidesCommunicationShorterThanCompute) {
  constexpr std::int64_t G = 10;
  const virtual_time::RankTimes times = plan_.times(toy_profile(C, G));
  const std::int64_t forward = G + (kBlocks + 1) * C;
  const std::int64_t regather = GetParam().reshard ? G : 0;
  const std::int64_t backward = regather + backward_products() * C + G;
  EXPECT_EQ(times.phases[1].compute_ns, forward);
  EXPECT_EQ(times.end_ns, forward + backward);
  const virtual_time::Breakdown parts = parts_of(plan_, times);
  EXPECT_EQ(parts.exposed_comm_ns, G + regather + G);
  EXPECT_EQ(parts.compute_ns, (kBlocks + 1 + backward_products()) * C);
  EXPECT_EQ(parts.comm_ns, (kBlocks + 1) * G * (GetParam().reshard ? 3 : 2));
  EXPECT_EQ(parts.idle_ns, 0);
}

// C much shorter than G, regathered: the links never rest, and every parameter crosses them three times.
TEST_P(StepOfAFastHost, IsBoundByTheLinksWhereComputeIsShort) {
  constexpr std::int64_t G = 1000;
  const virtual_time::RankTimes times = plan_.times(toy_profile(C, G));
  EXPECT_EQ(times.phases[1].compute_ns, (kBlocks + 1) * G + C);
  EXPECT_EQ(parts_of(plan_, times).comm_ns, (kBlocks + 1) * G * (GetParam().reshard ? 3 : 2));
  if (GetParam().reshard) {
    EXPECT_EQ(times.end_ns, 3 * (kBlocks + 1) * G);
  }
}

std::vector<Mode> modes(std::initializer_list<bool> reshard_modes) {
  std::vector<Mode> modes;
  for (int prefetch : {0, 1, 2}) {
    for (bool reshard : reshard_modes) {
      for (Recompute recompute : {Recompute::kNone, Recompute::kReentrant, Recompute::kRecorded}) {
        modes.push_back({prefetch, reshard, recompute});
      }
    }
  }
  return modes;
}

INSTANTIATE_TEST_SUITE_P(Modes, StepOfAFastHost, ::testing::ValuesIn(modes({true, false})), words);

class StepThatKeepsParameters : public StepOfAFastHost {};

// C < G <= 2 C: forward waits for every gather; in backward a block's products hide its successor's reduction, but the
// root's single product does not hide the first block's.
TEST_P(StepThatKeepsParameters, ExposesTheRestOfLongerCommunication) {
  constexpr std::int64_t G = 50;
  const virtual_time::RankTimes times = plan_.times(toy_profile(C, G));
  EXPECT_EQ(times.phases[1].compute_ns, (kBlocks + 1) * G + C);
  EXPECT_EQ(times.end_ns, (kBlocks + 1) * G + C + (backward_products() - 1) * C + 2 * G);
  EXPECT_EQ(parts_of(plan_, times).exposed_comm_ns, G + kBlocks * (G - C) + (2 * G - C));
}

INSTANTIATE_TEST_SUITE_P(Modes, StepThatKeepsParameters, ::testing::ValuesIn(modes({false})), words);

// A host that needs H for each group, H > C + G: it decides, and the depth says when it launches what.
class StepOfASlowHost : public ::testing::TestWithParam<int> {};

// The recurrence of a forward: gather i is issued in turn; the products of block i are launched behind the gathers that
// its list prefetches.
std::int64_t forward_by_recurrence(int depth, std::int64_t H, std::int64_t G) {
  std::int64_t gathered = H + G;  // the root's
  std::int64_t computed = gathered + C;
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    gathered = std::max(gathered, (2 + block) * H) + G;
    const std::int64_t launched = (2 + std::min<std::int64_t>(block + depth, kBlocks - 1)) * H;
    computed = std::max({computed, launched, gathered}) + C;
  }
  return computed;
}

TEST_P(StepOfASlowHost, ForwardFollowsTheHost) {
  constexpr std::int64_t H = 100, G = 10;
  const int depth = GetParam();
  const PlannedStep plan({.blocks = kBlocks, .forward_prefetch = depth});
  virtual_time::HardwareProfile profile = toy_profile(C, G);
  profile.launch.collective_ns = H;
  const virtual_time::RankTimes times = plan.times(profile);
  const std::int64_t forward = forward_by_recurrence(depth, H, G);
  EXPECT_EQ(times.phases[1].compute_ns, forward);
  const virtual_time::Breakdown parts = virtual_time::break_down(plan.recording, times, 0, forward);
  EXPECT_EQ(parts.compute_ns, (kBlocks + 1) * C);
  // In closed form: without a list the last gather is exposed; with one the last blocks, launched together, follow one
  // another.
  EXPECT_EQ(forward, (kBlocks + 1) * H + (depth == 0 ? G + C : (depth + 1) * C));
  EXPECT_EQ(plan.times(profile, virtual_time::HostCosts::kFree).phases[1].compute_ns, G + (kBlocks + 1) * C)
      << "the device's own bound";
}

// Backward: the root's gather, the last block's, then for each block the gathers ahead of it, its products and its
// reduction; H each. The products are short, so everything ends G after the last reduction was issued.
TEST_P(StepOfASlowHost, BackwardFollowsTheHost) {
  constexpr std::int64_t H = 200, G = 10;
  const PlannedStep plan({.blocks = kBlocks, .backward_prefetch = GetParam()});
  virtual_time::HardwareProfile profile = toy_profile(C, G);
  profile.launch.collective_ns = H;
  const virtual_time::RankTimes times = plan.times(profile);
  const std::int64_t groups = kBlocks + 1;
  EXPECT_EQ(times.end_ns, times.phases[1].host_ns + 2 * groups * H + G);
  EXPECT_EQ(times.phases[1].host_ns, groups * H);
}

INSTANTIATE_TEST_SUITE_P(Depths, StepOfASlowHost, ::testing::Values(0, 1, 2));

// Four ranks on two nodes, links of one speed: over all four a collective has a leg of G in the node and one of G / 2
// between; over the two of a node only the first.
TEST(StepOverNodes, AnIntegerReshardGathersForBackwardInsideTheNode) {
  constexpr std::int64_t G = 10;
  const PlannedStep plan({.blocks = kBlocks, .ranks = 4, .shard_size = 4, .reshard_after_forward = 2});
  const virtual_time::RankTimes times = plan.times(toy_profile(C, G));
  constexpr std::int64_t kAll = G + G / 2;
  EXPECT_EQ(times.phases[1].compute_ns, kAll + (kBlocks + 1) * C);
  EXPECT_EQ(times.end_ns - times.phases[1].compute_ns, G + (2 * kBlocks + 1) * C + kAll);
}

TEST(StepOverNodes, AFullReshardGathersOverAllAgain) {
  constexpr std::int64_t G = 10;
  const PlannedStep plan({.blocks = kBlocks, .ranks = 4, .shard_size = 4});
  const virtual_time::RankTimes times = plan.times(toy_profile(C, G));
  constexpr std::int64_t kAll = G + G / 2;
  EXPECT_EQ(times.end_ns - times.phases[1].compute_ns, kAll + (2 * kBlocks + 1) * C + kAll);
}

// Shards in the node, replicas across: half of the bytes go twice through a ring of two between nodes, which is G
// again.
TEST(StepOverNodes, TheHybridAllReduceOfTheLastGroupIsExposedToo) {
  constexpr std::int64_t G = 10;
  const PlannedStep plan({.blocks = kBlocks, .ranks = 4, .shard_size = 2});
  const virtual_time::RankTimes times = plan.times(toy_profile(C, G));
  EXPECT_EQ(times.end_ns, (G + (kBlocks + 1) * C) + (G + (2 * kBlocks + 1) * C) + G + G);
}

}  // namespace
}  // namespace loom::test
