// Promise: rotary tables are Hugging Face's, in the precision of the grain, made when first needed.
// World:   theta 100, head dim 4: angles s * 100^0 = s and s * 100^(-2/4) = s * 0.1 in fp32, each twice.
#include "models/decoder/rotary_embedding.h"

#include <cmath>
#include <gtest/gtest.h>

#include "engine/nn/functional.h"
#include "tests/models/test_rank.h"

namespace loom::models {
namespace {

class RotaryEmbeddingTest : public ::testing::Test {
 protected:
  nn::ValueList tables(std::int64_t seq, DType dtype = DType::kF32) {
    return rotary_(Tensor::zeros({2, seq, 8}, dtype)).list();
  }

  test::TestRank rank_;
  RotaryEmbedding rotary_{"Qwen2RotaryEmbedding", Rotary{4, 16, 100.0, {}}};
};

TEST_F(RotaryEmbeddingTest, HoldsCosinesAndSinesOfPositionTimesFrequencyTwice) {
  const auto list = tables(6);
  const std::vector<float> cos = list[0].tensor().to_vector<float>();
  const std::vector<float> sin = list[1].tensor().to_vector<float>();
  ASSERT_EQ(list[0].tensor().shape(), (Shape{6, 4}));
  for (std::size_t s = 0; s < 6; ++s) {
    for (std::size_t d = 0; d < 4; ++d) {
      const double angle = static_cast<float>(s) * (d % 2 == 0 ? 1.0f : 0.1f);
      EXPECT_EQ(cos[4 * s + d], static_cast<float>(std::cos(angle))) << s << " " << d;
      EXPECT_EQ(sin[4 * s + d], static_cast<float>(std::sin(angle))) << s << " " << d;
    }
  }
}

TEST_F(RotaryEmbeddingTest, AreFp32WhereRopeIsFusedAndOfTheActivationsTypeWhereItIsComposed) {
  EXPECT_EQ(tables(4, DType::kBF16)[0].tensor().dtype(), DType::kF32);
  rank_.context.slot<nn::KernelOptions>() = nn::KernelOptions::pytorch();
  EXPECT_EQ(tables(4, DType::kBF16)[0].tensor().dtype(), DType::kBF16);
  EXPECT_EQ(tables(4, DType::kF32)[0].tensor().dtype(), DType::kF32);
}

TEST_F(RotaryEmbeddingTest, AllocatesNothingBeforeTheFirstCallAndTheLongestSequenceAfterIt) {
  EXPECT_EQ(rank_.device.memory().stats().total_bytes, 0);
  tables(6);
  EXPECT_EQ(rotary_.own_buffers()[0].value.shape(), (Shape{6, 4}));
  tables(3);
  EXPECT_EQ(rotary_.own_buffers()[0].value.shape(), (Shape{6, 4}));
  EXPECT_EQ(rank_.device.memory().stats().total_bytes, 2 * 512);  // two tables of 96 bytes, rounded up
}

TEST_F(RotaryEmbeddingTest, KeepsNothingWhereRopeIsComposed) {
  rank_.context.slot<nn::KernelOptions>() = nn::KernelOptions::pytorch();
  const std::vector<float> composed = tables(6)[0].tensor().to_vector<float>();
  EXPECT_EQ(rank_.device.memory().stats().total_bytes, 0);
  rank_.context.slot<nn::KernelOptions>() = nn::KernelOptions::fast();
  EXPECT_EQ(tables(6)[0].tensor().to_vector<float>(), composed);
}

TEST_F(RotaryEmbeddingTest, GrowsToAtLeastTwiceAndAtMostAllPositions) {
  const std::vector<float> before = tables(6)[0].tensor().to_vector<float>();
  tables(7);
  EXPECT_EQ(rotary_.own_buffers()[0].value.shape(), (Shape{12, 4}));
  tables(13);
  EXPECT_EQ(rotary_.own_buffers()[0].value.shape(), (Shape{16, 4}));  // not 24
  EXPECT_EQ(tables(6)[0].tensor().to_vector<float>(), before);
}

}  // namespace
}  // namespace loom::models
