// Promise: a signal is noted and ends nothing; a second one of its kind, when the first is a second old, ends the
//          process at once; what was ignored stays ignored.
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

// A batch system warns with SIGUSR1 and sends SIGTERM a minute later, while the model is still written.
TEST(StopSignalsDeathTest, TakesAnotherSignalForTheSameRequest) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto warned = [] {
    const StopSignals signals;
    std::raise(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    std::raise(SIGTERM);
    std::exit(StopSignals::received() == SIGUSR1 ? 7 : 8);
  };
  EXPECT_EXIT(warned(), ::testing::ExitedWithCode(7), "SIGUSR1: the run ends after this step");
}

TEST(StopSignals, NotesEachOfItsSignals) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    const StopSignals signals;
    std::raise(signal);
    EXPECT_EQ(StopSignals::received(), signal);
  }
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
