// Promise: whether a run saves and ends after a step follows Megatron-LM's order and texts.
#include "engine/train/exit_decision.h"

#include <csignal>
#include <gtest/gtest.h>

namespace loom::train {
namespace {

constexpr StepOutcome after(std::int64_t iteration) { return {.iteration = iteration, .train_iters = 100}; }

void expect(const ExitDecision& decision, bool save, EndReason reason, const std::string& text, int signal = 0) {
  EXPECT_EQ(decision.save, save);
  EXPECT_EQ(decision.reason, reason);
  EXPECT_EQ(decision.exit(), reason != EndReason::kGoesOn);
  EXPECT_EQ(decision.text, text);
  EXPECT_EQ(decision.signal, signal);
}

TEST(ExitDecision, WithoutOptionsTheRunGoesOnAndSavesAfterTheLastStep) {
  expect(decide_exit({}, after(1)), false, EndReason::kGoesOn, "");
  expect(decide_exit({}, after(99)), false, EndReason::kGoesOn, "");
  expect(decide_exit({}, after(100)), true, EndReason::kLastStep, "");
}

TEST(ExitDecision, ItSavesAtEveryMultipleOfTheInterval) {
  const EndOptions options{.save_interval = 5};
  for (std::int64_t iteration = 1; iteration < 100; ++iteration) {
    expect(decide_exit(options, after(iteration)), iteration % 5 == 0, EndReason::kGoesOn, "");
  }
  expect(decide_exit(options, after(100)), true, EndReason::kLastStep, "");
}

TEST(ExitDecision, ItSavesAtEveryMultipleOfTheEpochsToo) {
  const EndOptions options{.save_interval = 10, .save_epochs = 2, .save_epoch_iters = 14};
  for (std::int64_t iteration = 1; iteration < 100; ++iteration) {
    expect(decide_exit(options, after(iteration)), iteration % 10 == 0 || iteration % 14 == 0, EndReason::kGoesOn, "");
  }
}

TEST(ExitDecision, ItEndsAtTheExitIntervalAndSaves) {
  const EndOptions options{.exit_interval = 5};
  expect(decide_exit(options, after(4)), false, EndReason::kGoesOn, "");
  expect(decide_exit(options, after(5)), true, EndReason::kInterval, "exiting program at iteration 5");
  expect(decide_exit({.save_interval = 5, .exit_interval = 5}, after(5)), true, EndReason::kInterval,
         "exiting program at iteration 5");
  expect(decide_exit(options, after(100)), true, EndReason::kLastStep, "");
}

TEST(ExitDecision, ItEndsWhenTheTimeIsUpOnAnyRank) {
  const EndOptions options{.exit_duration_in_mins = 60};
  StepOutcome outcome = after(7);
  outcome.elapsed_minutes = 70;  // not agreed on: decides nothing
  expect(decide_exit(options, outcome), false, EndReason::kGoesOn, "");
  outcome.time_is_up = true;
  expect(decide_exit(options, outcome), true, EndReason::kDuration, "exiting program after 70.00 minutes");
  outcome.elapsed_minutes = 59.9;  // another rank's clock was ahead
  expect(decide_exit(options, outcome), true, EndReason::kDuration, "exiting program after 60.00 minutes");
}

TEST(ExitDecision, ARanksTimeIsUpAfterTheDurationNotAtIt) {
  EXPECT_FALSE(time_is_up({.exit_duration_in_mins = 2}, 2.0));
  EXPECT_TRUE(time_is_up({.exit_duration_in_mins = 2}, 2.0001));
  EXPECT_FALSE(time_is_up({}, 1e9));
}

TEST(ExitDecision, ASignalSavesAndEndsWithItsStatus) {
  StepOutcome outcome = after(7);
  outcome.signal = SIGTERM;
  expect(decide_exit({}, outcome), true, EndReason::kSignal, "", SIGTERM);
  outcome.signal = SIGINT;
  expect(decide_exit({}, outcome), true, EndReason::kSignal, "", SIGINT);
}

TEST(ExitDecision, WithTheHandlerASignalOfTheSystemIsARegularEnd) {
  const EndOptions options{.exit_signal_handler = true};
  StepOutcome outcome = after(7);
  outcome.signal = SIGTERM;
  expect(decide_exit(options, outcome), true, EndReason::kSignal, "exiting program after receiving SIGTERM.");
  outcome.signal = SIGHUP;
  expect(decide_exit(options, outcome), true, EndReason::kSignal, "exiting program after receiving SIGHUP.");
  outcome.signal = SIGINT;  // a person's: its status says so
  expect(decide_exit(options, outcome), true, EndReason::kSignal, "", SIGINT);
}

TEST(ExitDecision, TheSignalComesFirstThenTheTimeThenTheInterval) {
  const EndOptions options{
      .save_interval = 5, .exit_interval = 5, .exit_duration_in_mins = 1, .exit_signal_handler = true};
  StepOutcome outcome = after(5);
  outcome.time_is_up = true;
  outcome.elapsed_minutes = 1.5;
  expect(decide_exit(options, outcome), true, EndReason::kDuration, "exiting program after 1.50 minutes");
  outcome.signal = SIGTERM;
  expect(decide_exit(options, outcome), true, EndReason::kSignal, "exiting program after receiving SIGTERM.");
}

TEST(ExitDecision, TheLastStepEndsTheRunWhateverElseDoes) {
  StepOutcome outcome = after(100);
  outcome.signal = SIGTERM;
  outcome.time_is_up = true;
  expect(decide_exit({.exit_interval = 5, .exit_signal_handler = true}, outcome), true, EndReason::kLastStep, "");
}

TEST(ExitDecision, NothingIsSavedTwice) {
  StepOutcome outcome = after(5);
  outcome.just_saved = true;
  expect(decide_exit({.save_interval = 5}, outcome), false, EndReason::kGoesOn, "");
  expect(decide_exit({.save_interval = 5, .exit_interval = 5}, outcome), false, EndReason::kInterval,
         "exiting program at iteration 5");
  outcome.iteration = 100;
  expect(decide_exit({}, outcome), false, EndReason::kLastStep, "");
}

}  // namespace
}  // namespace loom::train
