// Promise: figures have the unit that fits the largest of them, and only zero shows as zero.
#include "engine/core/units.h"

#include <gtest/gtest.h>

namespace loom {
namespace {

TEST(Units, FitTheSize) {
  EXPECT_EQ(memory_text(0), "0 bytes");
  EXPECT_EQ(memory_text(1023), "1023 bytes");
  EXPECT_EQ(memory_text(1536), "1.50 KiB");
  EXPECT_EQ(memory_text(-(std::int64_t{3} << 20)), "-3.00 MiB");
  EXPECT_EQ(memory_text(std::int64_t{1} << 41), "2048.00 GiB");
  EXPECT_EQ(time_text(999), "999 ns");
  EXPECT_EQ(time_text(1'500), "1.50 us");
  EXPECT_EQ(time_text(2'260'000), "2.26 ms");
  EXPECT_EQ(time_text(6'151'960'000), "6.152 s");
  EXPECT_EQ(count_text(64), "64");
  EXPECT_EQ(count_text(69'520), "69.520 K");
  EXPECT_EQ(count_text(5'939'456), "5.939 M");
  EXPECT_EQ(count_text(70'554'000'000), "70.554 G");
}

TEST(Units, OfATableAreOne) {
  const Unit unit = unit_of_bytes(std::int64_t{5} << 30);
  EXPECT_EQ(unit.name, "GiB");
  EXPECT_EQ(figure(std::int64_t{5} << 30, unit), "5.00");
  EXPECT_EQ(figure(std::int64_t{1} << 29, unit), "0.50");
  EXPECT_EQ(figure(std::int64_t{0}, unit), "0.00");
}

TEST(Units, ShowNothingButZeroAsZero) {
  const Unit unit = unit_of_bytes(std::int64_t{5} << 30);
  EXPECT_EQ(figure(std::int64_t{1}, unit), "<0.01");
  EXPECT_EQ(figure(std::int64_t{-1}, unit), ">-0.01");
  EXPECT_EQ(figure(0.04, 1), "<0.1");
  EXPECT_EQ(figure(0.4, 0), "<1");
  EXPECT_EQ(figure(0.0, 1), "0.0");
}

}  // namespace
}  // namespace loom
