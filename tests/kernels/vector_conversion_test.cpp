// Promise: the vector conversions give the bits of core's scalar bf16 and f16, for every one of the 65536 patterns.
#include <bit>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/kernels/simd.h"

namespace loom::kernels {
namespace {

using simd::F32x16;

template <class T>
T of_bits(std::uint32_t bits) {
  return std::bit_cast<T>(static_cast<std::uint16_t>(bits));
}

template <class T>
void expect_widening_matches() {
  for (std::uint32_t base = 0; base < 65536; base += 16) {
    T halves[16];
    for (std::uint32_t lane = 0; lane < 16; ++lane) halves[lane] = of_bits<T>(base + lane);
    const F32x16 wide = simd::load<F32x16>(halves);
    for (int lane = 0; lane < 16; ++lane) {
      const auto want = static_cast<float>(halves[lane]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[lane])) << base + static_cast<std::uint32_t>(lane);
        ASSERT_EQ(std::signbit(wide[lane]), std::signbit(want));
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(float{wide[lane]}), std::bit_cast<std::uint32_t>(want))
            << base + static_cast<std::uint32_t>(lane);
      }
    }
  }
}

template <class T>
void expect_narrowing_matches(const std::vector<float>& values) {
  for (std::size_t base = 0; base + 16 <= values.size(); base += 16) {
    T got[16];
    simd::store(got, simd::load<F32x16>(values.data() + base));
    for (std::size_t lane = 0; lane < 16; ++lane) {
      const float value = values[base + lane];
      const T want(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(static_cast<float>(got[lane])));
        ASSERT_EQ(got[lane].bits & 0x8000u, want.bits & 0x8000u);
      } else {
        ASSERT_EQ(got[lane].bits, want.bits) << value;
      }
    }
  }
}

// Two packs at once: the bits of one after the other.
template <class T>
void expect_pairs_match(const std::vector<float>& values) {
  for (std::size_t base = 0; base + 32 <= values.size(); base += 32) {
    const auto first = simd::load<F32x16>(values.data() + base), second = simd::load<F32x16>(values.data() + base + 16);
    T together[32], apart[32];
    simd::store_two(together, first, second);
    simd::store(apart, first);
    simd::store(apart + 16, second);
    for (std::size_t lane = 0; lane < 32; ++lane)
      ASSERT_EQ(together[lane].bits, apart[lane].bits) << values[base + lane];
  }
}

// Every 16-bit number and, between it and the next, the neighbourhood of the tie.
template <class T>
std::vector<float> numbers_and_ties() {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto here = static_cast<float>(of_bits<T>(bits));
    const auto next = static_cast<float>(of_bits<T>((bits & 0x7fffu) == 0x7fffu ? bits : bits + 1));
    const float tie = here + (next - here) / 2;
    for (float value : {here, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, next)}) values.push_back(value);
  }
  return values;
}

TEST(VectorConversion, WidensEveryBf16AsTheScalarDoes) { expect_widening_matches<bf16>(); }
TEST(VectorConversion, WidensEveryFp16AsTheScalarDoes) { expect_widening_matches<f16>(); }
TEST(VectorConversion, RoundsToBf16AsTheScalarDoes) { expect_narrowing_matches<bf16>(numbers_and_ties<bf16>()); }
TEST(VectorConversion, RoundsToFp16AsTheScalarDoes) { expect_narrowing_matches<f16>(numbers_and_ties<f16>()); }

TEST(VectorConversion, RoundsEveryUpperHalfWordAsTheScalarDoes) {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (std::uint32_t lower : {0u, 1u, 0x1000u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  expect_narrowing_matches<bf16>(values);
  expect_narrowing_matches<f16>(values);
  expect_pairs_match<bf16>(values);
  expect_pairs_match<f16>(values);
}

TEST(VectorConversion, RoundsADoubleOnceOnItsWayToBf16) {
  // 1 + 2^-8 is the tie between 1 and 1 + 2^-7; a little above it must go up, which rounding to fp32 first would hide.
  EXPECT_EQ(static_cast<float>(simd::from_double<bf16>(1.0 + 0x1p-8 + 0x1p-40)), 1.0f + 0x1p-7f);
  EXPECT_EQ(static_cast<float>(simd::from_double<bf16>(1.0 + 0x1p-8)), 1.0f);
  EXPECT_EQ(static_cast<float>(simd::from_double<bf16>(-1.0 - 0x1p-8 - 0x1p-40)), -1.0f - 0x1p-7f);
  EXPECT_EQ(static_cast<float>(simd::from_double<bf16>(1.0 + 3 * 0x1p-8 - 0x1p-40)), 1.0f + 0x1p-7f);
}

TEST(VectorConversion, PartialPacksTouchOnlyTheirLanes) {
  float from[16];
  for (int i = 0; i < 16; ++i) from[i] = static_cast<float>(i + 1);
  bf16 to[16] = {};
  const F32x16 head = simd::load<F32x16>(from, simd::Part{5});
  EXPECT_EQ(head[4], 5.0f);
  EXPECT_EQ(head[5], 0.0f);
  simd::store(to, simd::load<F32x16>(from), simd::Part{5});
  EXPECT_EQ(static_cast<float>(to[4]), 5.0f);
  EXPECT_EQ(static_cast<float>(to[5]), 0.0f);
}

}  // namespace
}  // namespace loom::kernels
