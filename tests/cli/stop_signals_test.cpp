// Promise: a signal is noted and ends nothing; a second one, when the first is a second old, ends the process at once;
//          what was ignored stays ignored.
#include "engine/launch/stop_signals.h"

#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>

namespace loom::launch {
namespace {

TEST(StopSignals, NotesTheFirstAndTakesASecondAtOnceForTheSameRequest) {
  const StopSignals signals;
  EXPECT_EQ(StopSignals::received(), 0);
  std::raise(SIGINT);
  std::raise(SIGTERM);
  EXPECT_EQ(StopSignals::received(), SIGINT);
}

TEST(StopSignalsDeathTest, EndsTheProcessAtASecondRequest) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto twice = [] {
    const StopSignals signals;
    std::raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    std::raise(SIGTERM);
    std::exit(0);
  };
  EXPECT_EXIT(twice(), ::testing::KilledBySignal(SIGTERM), "SIGTERM: the run ends after this step");
}

TEST(StopSignals, LeavesIgnoredSignalsIgnoredAndPutsBackWhatWasThere) {
  std::signal(SIGINT, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGINT);
    EXPECT_EQ(StopSignals::received(), 0);
  }
  EXPECT_EQ(std::signal(SIGINT, SIG_DFL), SIG_IGN);
}

TEST(Interrupted, NamesItsSignal) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(Interrupted(SIGINT, "text").signal(), SIGINT);
}

}  // namespace
}  // namespace loom::launch
