// Promise: a terminal shows one line that redraws itself, kept output gets plain lines, and only the shown one prints.
// Clock:   set by the test; a step takes what the test says.
#include "engine/log/progress.h"

#include <gtest/gtest.h>
#include <sstream>

namespace loom::log {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

struct Screen {
  std::ostringstream out;
  std::int64_t now_ns = 5 * kSecond;

  MonotonicClock clock() {
    return [this] { return now_ns; };
  }
};

TEST(ProgressInKeptOutput, PrintsALineEveryIntervalAndAtTheEnd) {
  Screen screen;
  {
    Progress progress({.total_steps = 5, .log_interval = 2}, screen.out, screen.clock());
    for (int step = 1; step <= 5; ++step) {
      screen.now_ns += 30 * kSecond;
      progress.update(step, 6.0 - step, 1000.4);
    }
  }
  EXPECT_EQ(screen.out.str(),
            "step 2/5  loss 4.0000  1000 tokens/s  1:30 left\n"
            "step 4/5  loss 2.0000  1000 tokens/s  0:30 left\n"
            "step 5/5  loss 1.0000  1000 tokens/s  0:00 left\n");
}

TEST(ProgressInKeptOutput, HasTheFiguresOfTheLossFunctionInStepsAndEvaluations) {
  Screen screen;
  Progress progress({.total_steps = 2, .loss_unit = "a pair"}, screen.out, screen.clock());
  screen.now_ns += kSecond;
  progress.step_done({.step = 1,
                      .loss = 0.5,
                      .tokens_per_second = 10,
                      .held_out_loss = 0.25,
                      .held_out_reports = {{"accuracy", 0.75}},
                      .reports = {{"accuracy", 1}, {"margin", -2}}});
  progress.run_done(train::Evaluation{0.125, {{"accuracy", 0.5}}});
  EXPECT_EQ(screen.out.str(),
            "step 1/2  loss 0.5000  accuracy 1.0000  margin -2.0000  10 tokens/s  0:01 left\n"
            "step 1: held-out loss 0.2500 a pair, accuracy 0.7500\n"
            "test loss 0.1250 a pair, accuracy 0.5000\n");
}

// A line that is wrapped could not be drawn over.
TEST(ProgressOnATerminal, HasAsManyFiguresOfTheLossFunctionAsFit) {
  const train::Reports reports{{"accuracy", 1}, {"margin", -2}};
  const auto drawn = [&](std::size_t columns) {
    Screen screen;
    Progress progress({.total_steps = 2, .terminal = true, .columns = columns}, screen.out, screen.clock());
    progress.update(2, 0.5, 10, reports);
    return screen.out.str();
  };
  EXPECT_EQ(drawn(80), "\r[==] 2/2  loss 0.5000  accuracy 1.0000  margin -2.0000  10 tokens/s  0:00 left");
  EXPECT_EQ(drawn(70), "\r[==] 2/2  loss 0.5000  accuracy 1.0000  10 tokens/s  0:00 left");
  EXPECT_EQ(drawn(40), "\r[==] 2/2  loss 0.5000  10 tokens/s  0:00 left");
}

TEST(ProgressInKeptOutput, CountsHoursAndTheStepsOfThisRunOnly) {
  Screen screen;
  Progress progress({.total_steps = 1000, .first_step = 500, .log_interval = 10}, screen.out, screen.clock());
  screen.now_ns += 100 * kSecond;  // 10 steps of 10 s; 490 to come: 4900 s
  progress.update(510, 1.0, 1.0);
  EXPECT_EQ(screen.out.str(), "step 510/1000  loss 1.0000  1 tokens/s  1:21:40 left\n");
}

TEST(ProgressInKeptOutput, SaysWhichStepsWereSkipped) {
  Screen screen;
  Progress progress({.total_steps = 5}, screen.out, screen.clock());
  progress.skipped(3);
  EXPECT_EQ(screen.out.str(), "step 3: skipped (--iterations-to-skip); its data is consumed, nothing is trained\n");
}

TEST(ProgressOnATerminal, RedrawsOneLine) {
  Screen screen;
  {
    Progress progress({.total_steps = 4, .log_interval = 100, .terminal = true}, screen.out, screen.clock());
    for (int step = 1; step <= 4; ++step) {
      screen.now_ns += kSecond;
      progress.update(step, 10.0 / step, 12345.0);
    }
  }
  // The bar has a tick a step when there are fewer than 24 steps; the shorter second line is padded to the first.
  EXPECT_EQ(screen.out.str(),
            "\r[=>  ] 1/4  loss 10.0000  12345 tokens/s  0:03 left"
            "\r[==> ] 2/4  loss 5.0000  12345 tokens/s  0:02 left "
            "\r[===>] 3/4  loss 3.3333  12345 tokens/s  0:01 left"
            "\r[====] 4/4  loss 2.5000  12345 tokens/s  0:00 left"
            "\n");
}

TEST(ProgressOnATerminal, RedrawsAtMostTenTimesASecondButAlwaysAtTheEnd) {
  Screen screen;
  Progress progress({.total_steps = 1000, .terminal = true}, screen.out, screen.clock());
  for (int step = 1; step <= 1000; ++step) {
    screen.now_ns += kSecond / 1000;
    progress.update(step, 1.0, 1.0);
  }
  // At 1 ms, then every 100 ms: 1, 101, ..., 901, and the last.
  const std::string text = screen.out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 11);
  EXPECT_NE(text.find("[========================] 1000/1000"), std::string::npos);
}

TEST(ProgressOnATerminal, BeginsWhereAResumedRunBegins) {
  Screen screen;
  Progress progress({.total_steps = 48, .first_step = 24, .terminal = true}, screen.out, screen.clock());
  screen.now_ns += kSecond;
  progress.update(25, 1.0, 1.0);  // 12 of 24 ticks
  EXPECT_EQ(screen.out.str(), "\r[============>           ] 25/48  loss 1.0000  1 tokens/s  0:23 left");
}

TEST(ProgressOnATerminal, PutsNotesAboveTheBar) {
  Screen screen;
  {
    Progress progress({.total_steps = 2, .terminal = true}, screen.out, screen.clock());
    progress.update(1, 1.0, 1.0);
    progress.note("step 1: held-out loss 2.5");
    progress.update(2, 1.0, 1.0);
  }
  const std::string first = "[=>] 1/2  loss 1.0000  1 tokens/s  0:00 left";
  EXPECT_EQ(screen.out.str(), "\r" + first + "\r" + std::string(first.size(), ' ') +
                                  "\rstep 1: held-out loss 2.5\n"
                                  "\r[==] 2/2  loss 1.0000  1 tokens/s  0:00 left\n");
}

TEST(ProgressOnATerminal, DrawsAtOnceAfterANote) {
  Screen screen;
  Progress progress({.total_steps = 10, .terminal = true}, screen.out, screen.clock());
  progress.update(1, 1.0, 1.0);
  progress.note("n");
  progress.update(2, 1.0, 1.0);  // the clock stands still
  EXPECT_NE(screen.out.str().find("2/10"), std::string::npos);
}

TEST(ProgressNotShown, PrintsNothing) {
  for (const bool terminal : {false, true}) {
    Screen screen;
    {
      Progress progress({.total_steps = 2, .terminal = terminal, .shown = false}, screen.out, screen.clock());
      progress.update(1, 1.0, 1.0);
      progress.note("n");
      progress.update(2, 1.0, 1.0);
    }
    EXPECT_EQ(screen.out.str(), "");
  }
}

}  // namespace
}  // namespace loom::log
