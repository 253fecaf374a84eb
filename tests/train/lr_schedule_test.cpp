// Promise: learning rate and weight decay follow Megatron-LM's formulas (optimizer_parity holds all of them).
// Rates:   max 8, min 2, so that shares are eighths; warmup 4, decay over 12 steps: r = (n - 4) / 8.
#include "engine/train/lr_schedule.h"

#include <cmath>
#include <gtest/gtest.h>

namespace loom::train {
namespace {

LrSchedule eighths(LrDecayStyle style) {
  return {.max_lr = 8.0, .min_lr = 2.0, .style = style, .warmup_steps = 4, .decay_steps = 12};
}

TEST(LrSchedule, WarmsUpLinearlyFromZero) {
  for (const LrDecayStyle style :
       {LrDecayStyle::kConstant, LrDecayStyle::kLinear, LrDecayStyle::kCosine, LrDecayStyle::kInverseSquareRoot}) {
    const LrSchedule schedule = eighths(style);
    EXPECT_DOUBLE_EQ(schedule.at(0), 0.0);
    EXPECT_DOUBLE_EQ(schedule.at(1), 2.0);  // 8 * 1 / 4
    EXPECT_DOUBLE_EQ(schedule.at(3), 6.0);
    EXPECT_DOUBLE_EQ(schedule.at(4), 8.0);
  }
}

TEST(LrSchedule, WarmsUpFromTheFirstRate) {
  LrSchedule schedule = eighths(LrDecayStyle::kCosine);
  schedule.init_lr = 4.0;
  EXPECT_DOUBLE_EQ(schedule.at(0), 4.0);
  EXPECT_DOUBLE_EQ(schedule.at(3), 7.0);  // 4 + 4 * 3 / 4
  EXPECT_DOUBLE_EQ(schedule.at(4), 8.0);
}

TEST(LrSchedule, OfWsdFallsInItsLastPartOnly) {
  LrSchedule schedule = eighths(LrDecayStyle::kWsd);
  schedule.wsd_style = WsdDecayStyle::kMinusSqrt;
  schedule.wsd_decay_steps = 4;
  EXPECT_DOUBLE_EQ(schedule.at(8), 8.0);
  EXPECT_DOUBLE_EQ(schedule.at(9), 5.0);  // 2 + 6 * (1 - sqrt(1/4))
  EXPECT_DOUBLE_EQ(schedule.at(12), 2.0);
  EXPECT_DOUBLE_EQ(schedule.at(13), 2.0);
}

TEST(WeightDecaySchedule, RisesToItsEndAndStays) {
  WeightDecaySchedule schedule{.start = 1.0, .end = 3.0, .style = WeightDecayIncrStyle::kLinear, .incr_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.at(0), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(1), 1.5);
  EXPECT_DOUBLE_EQ(schedule.at(5), 3.0);
  schedule.style = WeightDecayIncrStyle::kCosine;
  EXPECT_DOUBLE_EQ(schedule.at(1), 1.0 + (1.0 - std::sqrt(0.5)));  // (cos(3 pi / 4) + 1) / 2 of 2
  EXPECT_DOUBLE_EQ(schedule.at(2), 2.0);
}

TEST(StyleWords, AreMegatrons) {
  EXPECT_EQ(word_of(LrDecayStyle::kInverseSquareRoot), "inverse-square-root");
  EXPECT_EQ(word_of(LrDecayStyle::kWsd), "WSD");
  EXPECT_EQ(word_of(WsdDecayStyle::kMinusSqrt), "minus_sqrt");
  EXPECT_EQ(word_of(WeightDecayIncrStyle::kCosine), "cosine");
}

TEST(LrSchedule, StaysConstantForEver) {
  EXPECT_DOUBLE_EQ(eighths(LrDecayStyle::kConstant).at(5), 8.0);
  EXPECT_DOUBLE_EQ(eighths(LrDecayStyle::kConstant).at(1000), 8.0);
}

TEST(LrSchedule, FallsLinearly) {
  const LrSchedule schedule = eighths(LrDecayStyle::kLinear);
  EXPECT_DOUBLE_EQ(schedule.at(6), 6.5);  // 2 + 6 * (1 - 2/8)
  EXPECT_DOUBLE_EQ(schedule.at(8), 5.0);  // 2 + 6 * (1 - 4/8)
  EXPECT_DOUBLE_EQ(schedule.at(12), 2.0);
  EXPECT_DOUBLE_EQ(schedule.at(13), 2.0);
}

TEST(LrSchedule, FallsAsACosine) {
  const LrSchedule schedule = eighths(LrDecayStyle::kCosine);
  EXPECT_DOUBLE_EQ(schedule.at(6), 2.0 + 6.0 * (std::sqrt(0.5) + 1.0) / 2.0);  // cos(pi / 4)
  EXPECT_DOUBLE_EQ(schedule.at(8), 5.0);                                       // cos(pi / 2) = 0
  EXPECT_DOUBLE_EQ(schedule.at(12), 2.0);
  EXPECT_DOUBLE_EQ(schedule.at(13), 2.0);
}

TEST(LrSchedule, FallsAsTheInverseSquareRoot) {
  const LrSchedule schedule = eighths(LrDecayStyle::kInverseSquareRoot);
  EXPECT_DOUBLE_EQ(schedule.at(9), 16.0 / 3.0);  // 8 * sqrt(4) / sqrt(9)
  EXPECT_DOUBLE_EQ(schedule.at(12), 16.0 / std::sqrt(12.0));
  EXPECT_DOUBLE_EQ(schedule.at(13), 2.0);
}

TEST(LrSchedule, KeepsTheInverseSquareRootAboveTheMinimum) {
  LrSchedule schedule = eighths(LrDecayStyle::kInverseSquareRoot);
  schedule.decay_steps = 100;
  EXPECT_DOUBLE_EQ(schedule.at(64), 2.0);   // 16 / 8
  EXPECT_DOUBLE_EQ(schedule.at(100), 2.0);  // 16 / 10 is below
}

TEST(LrSchedule, WithoutWarmupBeginsAtTheTop) {
  for (const LrDecayStyle style :
       {LrDecayStyle::kConstant, LrDecayStyle::kLinear, LrDecayStyle::kCosine, LrDecayStyle::kInverseSquareRoot}) {
    LrSchedule schedule = eighths(style);
    schedule.warmup_steps = 0;
    EXPECT_DOUBLE_EQ(schedule.at(0), 8.0);
  }
}

}  // namespace
}  // namespace loom::train
