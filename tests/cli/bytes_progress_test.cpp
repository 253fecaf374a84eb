// Promise: a copy's bar says how far it is, how fast and how long still, on a terminal alone.
// World:   a clock of the test.
#include "engine/cli/bytes_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>

namespace loom::cli {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;

std::string drawn(bool terminal) {
  std::ostringstream out;
  std::int64_t now = 0;
  BytesProgress progress(out, terminal, [&now] { return now; });
  now = 2 * kSecond_ns;
  progress.update(500'000'000, 2'000'000'000);
  now += kSecond_ns / 100;  // too soon to draw again
  progress.update(600'000'000, 2'000'000'000);
  now = 4 * kSecond_ns;
  progress.update(2'000'000'000, 2'000'000'000);
  return out.str();
}

TEST(BytesProgress, DrawsShareSpeedAndTimeLeft) {
  EXPECT_EQ(drawn(true),
            "\r[======>                 ] 500.0 MB of 2.0 GB  250.0 MB/s  0:06 left"
            "\r[========================] 2.0 GB of 2.0 GB  500.0 MB/s  0:00 left  ");
}

TEST(BytesProgress, PrintsNothingElsewhere) { EXPECT_EQ(drawn(false), ""); }

TEST(BytesProgress, ShowsBytesWithTheirUnit) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(999), "999 bytes");
  EXPECT_EQ(bytes_text(1500), "1.5 kB");
  EXPECT_EQ(bytes_text(3.14e12), "3.1 TB");
}

}  // namespace
}  // namespace loom::cli
