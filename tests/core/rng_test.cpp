// Promise: random numbers are Philox 4x32-10 of (key, counter); their distributions and permutations are what they say.
#include "engine/core/rng.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <numbers>
#include <set>
#include <span>
#include <vector>

namespace loom {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32, 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  EXPECT_EQ(philox(kOnes, kOnes, kOnes), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, DependsOnEveryWordOfKeyAndCounter) {
  std::set<Philox4> seen{philox(0, 0, 0)};
  for (int shift : {0, 31, 32, 63}) {
    const std::uint64_t bit = std::uint64_t{1} << shift;
    seen.insert(philox(bit, 0, 0));
    seen.insert(philox(0, bit, 0));
    seen.insert(philox(0, 0, bit));
  }
  EXPECT_EQ(seen.size(), 13u);
}

TEST(StreamKey, TellsSeedsAndNamesApart) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed : {0u, 1u, 42u}) {
    for (const char* stream : {"", "a", "b", "ab", "ba", "layers.0.weight", "layers.1.weight"}) {
      EXPECT_TRUE(keys.insert(stream_key(seed, stream)).second) << seed << " " << stream;
    }
  }
  EXPECT_EQ(stream_key(42, "layers.0.weight"), stream_key(42, "layers.0.weight"));
}

constexpr std::uint64_t kSamples = 200000;

// Moments of `value(i)` over kSamples indices.
struct Moments {
  double mean = 0, variance = 0, fourth = 0;
};
template <class Value>
Moments moments(Value value) {
  Moments m;
  for (std::uint64_t i = 0; i < kSamples; ++i) m.mean += value(i) / kSamples;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const double d = value(i) - m.mean;
    m.variance += d * d / kSamples;
    m.fourth += d * d * d * d / kSamples;
  }
  return m;
}

// The allowed error is 4 standard deviations of the estimate: sqrt(variance of one sample / kSamples).
double four_sigmas(double variance_of_sample) { return 4 * std::sqrt(variance_of_sample / kSamples); }

TEST(UniformAt, FillsTheUnitInterval) {
  const std::uint64_t key = stream_key(1, "uniform");
  const Moments m = moments([&](std::uint64_t i) { return uniform_at(key, i); });
  EXPECT_NEAR(m.mean, 0.5, four_sigmas(1.0 / 12));
  EXPECT_NEAR(m.variance, 1.0 / 12, four_sigmas(1.0 / 180));  // E d^4 - (E d^2)^2 = 1/80 - 1/144
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(uniform_at(key, i), 0);
    EXPECT_LT(uniform_at(key, i), 1);
  }
}

TEST(NormalAt, HasTheMomentsOfTheStandardNormal) {
  const std::uint64_t key = stream_key(1, "normal");
  const Moments m = moments([&](std::uint64_t i) { return normal_at(key, i); });
  EXPECT_NEAR(m.mean, 0, four_sigmas(1));
  EXPECT_NEAR(m.variance, 1, four_sigmas(2));
  EXPECT_NEAR(m.fourth, 3, four_sigmas(96));  // E d^8 - (E d^4)^2 = 105 - 9
}

// Box-Muller with the C library's log, cos and sin, which differ from ours by rounding alone.
double box_muller(std::uint64_t key, std::uint64_t index) {
  const Philox4 bits = philox(key, index / 2);
  const double radius = std::sqrt(-2 * std::log((bits[0] + 1.0) * 0x1p-32));
  const double angle = 2 * std::numbers::pi * bits[1] * 0x1p-32;
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TEST(NormalAt, IsBoxMullerOfThePhiloxBlock) {
  for (const char* name : {"a", "b", "c"}) {
    const std::uint64_t key = stream_key(3, name);
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      const double number = box_muller(key, i);
      ASSERT_NEAR(normal_at(key, i), number, 4e-15 * std::max(1.0, std::abs(number))) << name << " " << i;
    }
  }
}

TEST(NormalAt, KeepsItsBitsOnEveryProcessor) {
  EXPECT_EQ(normal_at(1, 0), 0x1.8587c51b68ab7p-2);
  EXPECT_EQ(normal_at(1, 1), -0x1.2f6378980fee6p-2);
  EXPECT_EQ(normal_at(stream_key(42, "layers.0.weight"), (std::uint64_t{1} << 33) + 5), 0x1.d66c228a2609bp-1);
}

TEST(NormalsAt, AreThoseOfOneAtATimeFromAnyIndex) {
  const std::uint64_t key = stream_key(4, "normals");
  for (const std::uint64_t first : {0u, 1u, 7u, 16u, 33u}) {
    for (const std::size_t count : {0u, 1u, 2u, 15u, 16u, 17u, 40u}) {
      std::vector<double> numbers(count + 1, 77.0);
      normals_at(key, first, std::span(numbers).first(count));
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(numbers[i], normal_at(key, first + i)) << first << " " << i;
      EXPECT_EQ(numbers[count], 77.0);
    }
  }
}

TEST(NormalAt, NeighboursAreNotCorrelated) {  // a pair shares one Philox block
  const std::uint64_t key = stream_key(2, "normal");
  double product = 0;
  for (std::uint64_t i = 0; i < kSamples; i += 2)
    product += normal_at(key, i) * normal_at(key, i + 1) / (kSamples / 2.0);
  EXPECT_NEAR(product, 0, 4 * std::sqrt(2.0 / kSamples));
}

TEST(Permute, IsABijectionForEverySize) {
  for (std::uint64_t n : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, 17u, 31u, 64u, 65u, 100u, 1000u, 1024u, 4097u}) {
    for (std::uint64_t key : {std::uint64_t{0}, stream_key(7, "epoch 3")}) {
      std::vector<bool> seen(n, false);
      for (std::uint64_t position = 0; position < n; ++position) {
        const std::uint64_t to = permute(key, position, n);
        ASSERT_LT(to, n);
        ASSERT_FALSE(seen[to]) << "n " << n << ", key " << key;
        seen[to] = true;
      }
    }
  }
}

TEST(Permute, DiffersByKeyAndMovesMostPositions) {
  constexpr std::uint64_t kSize = 1000;
  std::uint64_t fixed = 0, same = 0;
  for (std::uint64_t i = 0; i < kSize; ++i) {
    fixed += permute(1, i, kSize) == i ? 1 : 0;
    same += permute(1, i, kSize) == permute(2, i, kSize) ? 1 : 0;
  }
  EXPECT_LT(fixed, 10u);  // a random permutation fixes 1 on average; 10 or more has probability 1e-7
  EXPECT_LT(same, 10u);
}

TEST(WordsAt, AreTheUniformNumbersFromAnyIndexOn) {
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{1} << 32, ~std::uint64_t{0} - 99}) {
    for (const std::size_t count : {0, 1, 5, 32, 71, 100}) {
      std::vector<std::uint32_t> words(count);
      words_at(11, first, words);
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_EQ(words[i] * 0x1p-32, uniform_at(11, first + i)) << first << " " << i;
    }
  }
}

}  // namespace
}  // namespace loom
