// Promise: the bf16 half of split fp32 values is what a cast gives, or what rounding away from zero gives; joining
//          gives back every bit pattern.
#include "engine/kernels/split_fp32.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <vector>

#include "engine/core/dtype.h"

namespace loom::kernels {
namespace {

using ::testing::ElementsAre;

struct Halves {
  std::vector<std::uint16_t> residuals = {}, upper = {};
  std::vector<std::uint8_t> ties = {};
  std::vector<std::uint32_t> joined = {};
};

Halves split(const std::vector<std::uint32_t>& bits, bool even) {
  const auto n = static_cast<std::int64_t>(bits.size());
  std::vector<std::uint32_t> values = bits;
  std::vector<std::uint16_t> scratch(bits.size());
  Halves halves{.ties = std::vector<std::uint8_t>(static_cast<std::size_t>(tie_bytes(n)))};
  std::uint8_t* ties = even ? halves.ties.data() : nullptr;
  split_fp32(values.data(), n, ties, scratch.data());
  const auto* words = reinterpret_cast<const std::uint16_t*>(values.data());
  halves.residuals.assign(words, words + n);
  halves.upper.assign(words + n, words + 2 * n);
  join_fp32(values.data(), n, ties, scratch.data());
  halves.joined = values;
  return halves;
}

// Every exponent and both signs, with mantissas at and beside each edge of the cut; more than one block, and no whole
// number of bytes of marks.
std::vector<std::uint32_t> edges() {
  std::vector<std::uint32_t> all;
  for (std::uint32_t sign_and_exponent = 0; sign_and_exponent < 512; ++sign_and_exponent) {
    for (const std::uint32_t upper : {0x00U, 0x01U, 0x02U, 0x3eU, 0x3fU, 0x7eU, 0x7fU}) {
      for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
        all.push_back(sign_and_exponent << 23 | upper << 16 | lower);
      }
    }
  }
  all.pop_back();
  return all;
}

TEST(SplitFp32, JoinGivesEveryPatternBack) {
  const std::vector<std::uint32_t> all = edges();
  for (const bool even : {true, false}) EXPECT_TRUE(split(all, even).joined == all) << even;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{9}, std::size_t{2048}, std::size_t{2049}}) {
    const std::vector<std::uint32_t> few(all.begin() + 1000, all.begin() + 1000 + static_cast<std::ptrdiff_t>(count));
    EXPECT_TRUE(split(few, true).joined == few) << count;
  }
}

TEST(SplitFp32, TheUpperHalfIsTheCastOfEveryFiniteValue) {
  const std::vector<std::uint32_t> all = edges();
  const Halves halves = split(all, true);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto value = std::bit_cast<float>(all[i]);
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(halves.upper[i], std::bit_cast<std::uint16_t>(bf16(value))) << std::hex << all[i];
  }
}

TEST(SplitFp32, WithoutMarksHalvesRoundAwayFromZero) {
  const std::vector<std::uint32_t> all = edges();
  const Halves halves = split(all, false);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!std::isfinite(std::bit_cast<float>(all[i]))) continue;
    ASSERT_EQ(halves.upper[i], (all[i] >> 16) + ((all[i] & 0xffff) >= 0x8000 ? 1 : 0)) << std::hex << all[i];
  }
}

// 1.00390625, 1.01171875, pi, 1.
TEST(SplitFp32, KnownValues) {
  const std::vector<std::uint32_t> bits{0x3f808000, 0x3f818000, 0x40490fdb, 0x3f800000};
  const Halves plain = split(bits, false);
  EXPECT_THAT(plain.upper, ElementsAre(0x3f81, 0x3f82, 0x4049, 0x3f80));
  EXPECT_THAT(plain.residuals, ElementsAre(0, 0, 0x8fdb, 0x8000));
  const Halves even = split(bits, true);
  EXPECT_THAT(even.upper, ElementsAre(0x3f80, 0x3f82, 0x4049, 0x3f80));
  EXPECT_THAT(even.residuals, ElementsAre(0xffff, 0, 0x8fdb, 0x8000));
  EXPECT_THAT(even.ties, ElementsAre(1));
}

}  // namespace
}  // namespace loom::kernels
