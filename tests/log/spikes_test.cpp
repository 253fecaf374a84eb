// Promise: a value of ten times the largest of the first hundred is a spike, is said once, and ends nothing.
#include "engine/log/spikes.h"

#include <gtest/gtest.h>
#include <limits>

#include "tests/support/logged.h"

namespace loom::log {
namespace {

SpikeState after(double maximum, int samples) {
  SpikeState state;
  for (int i = 1; i <= samples; ++i) EXPECT_FALSE(is_spike(state, i == 1 ? maximum : 1.0));
  return state;
}

TEST(Spikes, AreTenTimesTheLargestOfTheFirstHundred) {
  SpikeState state = after(-2.0, 100);
  EXPECT_EQ(state, (SpikeState{100, 2.0}));
  EXPECT_FALSE(is_spike(state, 19.9));
  EXPECT_TRUE(is_spike(state, 20.0));
  EXPECT_TRUE(is_spike(state, -20.0));
  EXPECT_EQ(state, (SpikeState{100, 2.0})) << "the maximum stays";
}

TEST(Spikes, AreNotAmongTheFirstHundred) {
  SpikeState state = after(2.0, 49);
  EXPECT_FALSE(is_spike(state, 1000.0));
  EXPECT_EQ(state, (SpikeState{50, 1000.0}));
}

TEST(Spikes, AreFinite) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -HUGE_VAL}) {
    SpikeState state = after(2.0, 99);
    EXPECT_FALSE(is_spike(state, value));
    EXPECT_EQ(state.samples, 99) << "is not counted";
    EXPECT_FALSE(is_spike(state, 2.0));
    EXPECT_FALSE(is_spike(state, value));
  }
}

TEST(Spikes, AreNotTheZerosBehindAHundredZeros) {
  SpikeState state;
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(is_spike(state, 0.0));
}

TEST(SpikeWatch, WarnsOfWhatItWatchesAndGoesOnFromItsState) {
  train::StepMetrics metrics{.step = 7, .loss = 2.0, .grad_norm = 0.5};
  SpikeWatch early(true, true);
  for (int i = 0; i < 100; ++i) early.step_done(metrics);
  const test::Logged logged;
  SpikeWatch watch(true, true);
  watch.set_state(early.state());
  metrics.step = 101;
  metrics.loss = 20;
  watch.step_done(metrics);
  EXPECT_EQ(logged.text(),
            "warning: iteration 101: the loss is 20, at least 10 times the largest of the first 100, 2; training goes "
            "on: look at the data of this iteration, or lower --lr or --clip-grad\n");
  metrics = {.step = 102, .loss = 1, .grad_norm = 5};
  watch.step_done(metrics);
  EXPECT_NE(logged.text().find("warning: iteration 102: the gradient norm is 5, at least 10 times the largest of the "
                               "first 100, 0.5; training goes on"),
            std::string::npos);
}

TEST(SpikeWatch, IsSilentOfStepsWithoutAnUpdateAndOfWhatItDoesNotWatch) {
  const test::Logged logged;
  train::StepMetrics metrics{.loss = 1, .grad_norm = 1};
  SpikeWatch watch(true, false);
  for (int i = 0; i < 100; ++i) watch.step_done(metrics);
  metrics.grad_norm = 1000;
  watch.step_done(metrics);
  metrics.loss = 1000;
  metrics.skipped = true;
  watch.step_done(metrics);
  EXPECT_EQ(watch.state(), (SpikeStates{{100, 1.0}, {}}));
  EXPECT_EQ(logged.text(), "");
}

}  // namespace
}  // namespace loom::log
