// Promise: without a terminal preprocess prints a line every log interval, at most one a second; on a terminal a bar.
// World:   a clock of the test.
#include <gtest/gtest.h>
#include <sstream>

#include "engine/cli/commands/preprocess_command.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kSecond_ns = 1'000'000'000;

class Shown {
 public:
  explicit Shown(bool terminal, std::int64_t log_interval = 100)
      : lines_(out_, terminal, log_interval, [this] { return now_; }) {}

  std::string after(double seconds, std::int64_t records) {
    now_ += static_cast<std::int64_t>(seconds * kSecond_ns);
    out_.str("");
    lines_.update(
        {.done_bytes = static_cast<std::uint64_t>(records) * 1000, .all_bytes = 8'000'000, .records = records});
    return out_.str();
  }

 private:
  std::ostringstream out_;
  std::int64_t now_ = 0;
  PreprocessProgressLines lines_;
};

TEST(PreprocessProgress, PrintsALineAnInterval) {
  Shown shown(false);
  EXPECT_EQ(shown.after(2, 99), "");
  EXPECT_EQ(shown.after(0, 100), "100 records, 100.0 kB of 8.0 MB\n");
  EXPECT_EQ(shown.after(2, 199), "");
  EXPECT_EQ(shown.after(2, 1250), "1250 records, 1.2 MB of 8.0 MB\n");
}

TEST(PreprocessProgress, PrintsAtMostALineASecond) {
  Shown shown(false, 1);
  EXPECT_EQ(shown.after(0.5, 10), "");
  EXPECT_EQ(shown.after(0.5, 20), "20 records, 20.0 kB of 8.0 MB\n");
  EXPECT_EQ(shown.after(0.9, 3000), "");
  EXPECT_EQ(shown.after(0.1, 4000), "4000 records, 4.0 MB of 8.0 MB\n");
}

TEST(PreprocessProgress, DrawsABarOnATerminal) {
  Shown shown(true);
  EXPECT_EQ(shown.after(2, 2000), "\r[======>                 ] 2.0 MB of 8.0 MB  1.0 MB/s  0:06 left");
}

}  // namespace
}  // namespace loom::cli
