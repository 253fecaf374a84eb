// Promise: what swapped block inputs cost a step is what formulas of the copies' and the blocks' times say, alone and
//          beside recompute.
// World:   dry runs of one rank; only products (C) and copies to the host (D) and from it (U) take time
//          (tests/virtual_time/toy_step.h).
#include <gmock/gmock.h>

#include "tests/virtual_time/toy_step.h"

namespace loom::test {
namespace {

using Recompute = ToyStep::Recompute;

constexpr std::int64_t kBlocks = 4;
constexpr std::int64_t C = 100;
constexpr std::int64_t kInputBytes = 4 * kToyRows * kToyWidth;

virtual_time::HardwareProfile profile_of(std::int64_t D, std::int64_t U) {
  virtual_time::HardwareProfile profile = toy_profile(C, 1);
  profile.host_link = {.h2d_pinned_bytes_per_s = 1e9 * kInputBytes / static_cast<double>(U),
                       .d2h_pinned_bytes_per_s = 1e9 * kInputBytes / static_cast<double>(D),
                       .h2d_pageable_bytes_per_s = 1,
                       .d2h_pageable_bytes_per_s = 1};
  return profile;
}

PlannedStep step_of(Recompute recompute, bool swap) {
  return PlannedStep({.blocks = kBlocks, .ranks = 1, .shard_size = 1, .recompute = recompute, .swap = swap});
}

class SwapTime : public ::testing::TestWithParam<Recompute> {
 protected:
  // Of a block's backward.
  std::int64_t products() const { return GetParam() == Recompute::kNone ? 2 : 3; }

  // A block's input leaves while the block computes, and the next block waits for it; it comes back while the block
  // behind it goes backward.
  void expect_times(std::int64_t D, std::int64_t U) const {
    const PlannedStep plan = step_of(GetParam(), true);
    const virtual_time::RankTimes times = plan.times(profile_of(D, U));
    const std::int64_t forward = C + (kBlocks - 1) * std::max(C, D) + C;
    const std::int64_t B = products() * C;
    EXPECT_EQ(times.phases[1].compute_ns, forward);
    EXPECT_EQ(times.end_ns, forward + (kBlocks - 1) * std::max(B, U) + B + C);
    const virtual_time::Breakdown parts = virtual_time::break_down(plan.recording, times, 0, times.end_ns);
    const std::int64_t exposed = std::max<std::int64_t>(0, D - C) + std::max<std::int64_t>(0, U - B);
    EXPECT_EQ(parts.exposed_copy_ns, (kBlocks - 1) * exposed);
    EXPECT_EQ(parts.idle_ns, 0);
  }
};

TEST_P(SwapTime, OfAFastHostLinkIsHidden) {
  expect_times(60, 90);
  const PlannedStep without = step_of(GetParam(), false);
  EXPECT_EQ(step_of(GetParam(), true).times(profile_of(60, 90)).end_ns, without.times(profile_of(60, 90)).end_ns);
}

TEST_P(SwapTime, OfCopiesAsLongAsABlockIsHidden) { expect_times(C, products() * C); }

TEST_P(SwapTime, OfASlowHostLinkIsExposedByWhatIsLonger) { expect_times(150, 450); }

TEST_P(SwapTime, OfASlowWayOutAloneOrBackAlone) {
  expect_times(1000, 1);
  expect_times(1, 1000);
}

std::string words(const ::testing::TestParamInfo<Recompute>& info) {
  constexpr const char* kNames[] = {"None", "Reentrant", "Recorded"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, SwapTime,
                         ::testing::Values(Recompute::kNone, Recompute::kReentrant, Recompute::kRecorded), words);

// Two ranks that gather every block: the copies run beside collectives and take nothing from them.
TEST(SwapTimeBesideGathers, HidesBoth) {
  const ToyStep step{.blocks = kBlocks, .recompute = Recompute::kRecorded};
  ToyStep swapped = step;
  swapped.swap = true;
  virtual_time::HardwareProfile profile = profile_of(60, 90);
  for (virtual_time::LinkLevel& level : profile.links.levels) {
    level.bandwidth_bytes_per_s = 1e9 * (4 * kToyWidth * kToyWidth / 2) / 40;
  }
  EXPECT_EQ(PlannedStep(swapped).times(profile).end_ns, PlannedStep(step).times(profile).end_ns);
}

}  // namespace
}  // namespace loom::test
