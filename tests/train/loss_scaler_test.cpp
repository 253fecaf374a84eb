// Promise: the loss scale moves as Megatron's DynamicGradScaler moves it, and a constant one stays.
#include "engine/train/loss_scaler.h"

#include <gtest/gtest.h>
#include <limits>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

constexpr double k2To32 = 4294967296.0;

TEST(LossScaler, BeginsAsMegatronsDoes) {
  const LossScaler scaler({});
  EXPECT_EQ(scaler.state(), (LossScaleState{.scale = k2To32, .growth_tracker = 0, .hysteresis_tracker = 2}));
  EXPECT_TRUE(scaler.dynamic());
}

TEST(LossScaler, KeepsTheScaleAtTheFirstOverflowAndHalvesItAtTheSecond) {
  LossScaler scaler({});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), k2To32);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), k2To32 / 2);
  scaler.update(true);  // no hysteresis is left: each further one halves
  EXPECT_EQ(scaler.scale(), k2To32 / 4);
}

TEST(LossScaler, DoublesTheScaleAfterAThousandGoodUpdatesAndGivesTheHysteresisBack) {
  LossScaler scaler({.initial = 1024});
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(scaler.state(), (LossScaleState{.scale = 512, .growth_tracker = 0, .hysteresis_tracker = 0}));
  for (int update = 0; update < 999; ++update) scaler.update(false);
  EXPECT_EQ(scaler.state(), (LossScaleState{.scale = 512, .growth_tracker = 999, .hysteresis_tracker = 0}));
  scaler.update(false);
  EXPECT_EQ(scaler.state(), (LossScaleState{.scale = 1024, .growth_tracker = 0, .hysteresis_tracker = 2}));
}

TEST(LossScaler, AnOverflowBeginsTheWindowAgainAndGoodUpdatesGiveNoHysteresisBack) {
  LossScaler scaler({.initial = 1024, .window = 3});
  scaler.update(false);
  scaler.update(false);
  scaler.update(true);
  scaler.update(false);
  scaler.update(false);
  EXPECT_EQ(scaler.state(), (LossScaleState{.scale = 1024, .growth_tracker = 2, .hysteresis_tracker = 1}));
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 512);
}

TEST(LossScaler, NeverFallsBelowItsMinimumNorLeavesFp32) {
  LossScaler low({.initial = 48, .minimum = 20, .hysteresis = 1});
  EXPECT_FALSE(low.at_its_end());
  low.update(true);
  EXPECT_EQ(low.scale(), 24);
  low.update(true);
  EXPECT_EQ(low.scale(), 20);
  EXPECT_TRUE(low.at_its_end());
  low.update(true);
  EXPECT_EQ(low.scale(), 20);

  const double top = 0x1p127;
  LossScaler high({.initial = top, .window = 1});
  high.update(false);
  EXPECT_EQ(high.scale(), top);
}

TEST(LossScaler, AtItsMinimumIsNotAtItsEndWhileItHasHysteresis) {
  LossScaler scaler({.initial = 1, .hysteresis = 3});
  scaler.update(true);
  EXPECT_FALSE(scaler.at_its_end());
  scaler.update(true);
  EXPECT_TRUE(scaler.at_its_end());
}

TEST(LossScaler, AConstantOneStays) {
  LossScaler scaler({.constant = 100});
  for (const bool overflowed : {true, true, true, false}) scaler.update(overflowed);
  EXPECT_EQ(scaler.scale(), 100);
  EXPECT_TRUE(scaler.at_its_end());
  EXPECT_FALSE(scaler.dynamic());
}

TEST(LossScaler, GoesOnFromAnotherOnesState) {
  LossScaler first({.initial = 1024, .window = 4}), second({.initial = 8, .window = 4});
  const bool before[] = {false, true, false, false}, after[] = {false, false, true, true};
  for (const bool overflowed : before) first.update(overflowed);
  second.set_state(first.state());
  for (const bool overflowed : after) {
    first.update(overflowed);
    second.update(overflowed);
    EXPECT_EQ(second.state(), first.state());
  }
}

TEST(LossScaler, RefusesAStateThatNoScalerHas) {
  LossScaler scaler({});
  const auto refusal = [&](const LossScaleState& state) {
    return test::message_of<ConfigError>([&] { scaler.set_state(state); });
  };
  EXPECT_EQ(refusal({.scale = 0}),
            "the loss scaler's state has the scale 0 and the growth tracker 0; the scale is a number above 0, the "
            "tracker at least 0");
  EXPECT_EQ(refusal({.scale = std::numeric_limits<double>::infinity()}),
            "the loss scaler's state has the scale inf and the growth tracker 0; the scale is a number above 0, the "
            "tracker at least 0");
  EXPECT_EQ(refusal({.scale = 2, .growth_tracker = -1}),
            "the loss scaler's state has the scale 2 and the growth tracker -1; the scale is a number above 0, the "
            "tracker at least 0");
  EXPECT_EQ(scaler.scale(), k2To32);
}

}  // namespace
}  // namespace loom::train
