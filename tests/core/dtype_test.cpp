// Promise: dtypes have the names of fsdp2_config.yaml; bf16 and fp16 round to nearest, ties to even, and keep NaN.
#include "engine/core/dtype.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string_view>

namespace loom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
float rounded(float value) {
  return static_cast<float>(T(value));
}

TEST(DTypeNames, AreThoseOfTheConfiguration) {
  struct Row {
    DType dtype;
    std::string_view name;
    std::size_t bytes;
    bool floating;
  };
  for (const Row& row :
       {Row{DType::kF32, "fp32", 4, true}, Row{DType::kBF16, "bf16", 2, true}, Row{DType::kF16, "fp16", 2, true},
        Row{DType::kF64, "fp64", 8, true}, Row{DType::kI8, "int8", 1, false}, Row{DType::kI16, "int16", 2, false},
        Row{DType::kI32, "int32", 4, false}, Row{DType::kI64, "int64", 8, false}, Row{DType::kU8, "uint8", 1, false},
        Row{DType::kBool, "bool", 1, false}}) {
    EXPECT_EQ(name(row.dtype), row.name);
    EXPECT_EQ(parse_dtype(row.name), row.dtype);
    EXPECT_EQ(element_bytes(row.dtype), row.bytes);
    EXPECT_EQ(is_floating(row.dtype), row.floating);
  }
}

TEST(DTypeNames, OtherNamesAreNoDType) {
  for (std::string_view text : {"", "float32", "FP32", "fp32 ", "bfloat16"}) EXPECT_FALSE(parse_dtype(text)) << text;
}

TEST(Bf16, RoundsToNearestTiesToEven) {  // 8 significant bits: neighbours of 1 are 2^-7 apart
  EXPECT_EQ(rounded<bf16>(1 + 0x1p-9f), 1.0f);
  EXPECT_EQ(rounded<bf16>(1 + 0x1p-8f), 1.0f) << "tie, 1 is even";
  EXPECT_EQ(rounded<bf16>(1 + 3 * 0x1p-8f), 1 + 0x1p-6f) << "tie, 1 + 2^-6 is even";
  EXPECT_EQ(rounded<bf16>(1 + 0x1p-8f + 0x1p-20f), 1 + 0x1p-7f);
  EXPECT_EQ(rounded<bf16>(-(1 + 3 * 0x1p-8f)), -(1 + 0x1p-6f));
  EXPECT_EQ(rounded<bf16>(std::numeric_limits<float>::max()), kInfinity);
}

TEST(F16, RoundsToNearestTiesToEven) {  // 11 significant bits: neighbours of 1 are 2^-10 apart
  EXPECT_EQ(rounded<f16>(1 + 0x1p-11f), 1.0f) << "tie, 1 is even";
  EXPECT_EQ(rounded<f16>(1 + 3 * 0x1p-11f), 1 + 0x1p-9f) << "tie, 1 + 2^-9 is even";
  EXPECT_EQ(rounded<f16>(65504.0f), 65504.0f) << "the largest fp16";
  EXPECT_EQ(rounded<f16>(65519.0f), 65504.0f);
  EXPECT_EQ(rounded<f16>(65520.0f), kInfinity) << "tie between 65504 and 65536";
  EXPECT_EQ(rounded<f16>(-65520.0f), -kInfinity);
}

TEST(F16, HasSubnormals) {  // multiples of 2^-24
  EXPECT_EQ(rounded<f16>(0x1p-24f), 0x1p-24f);
  EXPECT_EQ(rounded<f16>(0x1p-25f), 0.0f) << "tie, 0 is even";
  EXPECT_EQ(rounded<f16>(3 * 0x1p-25f), 0x1p-23f) << "tie, 2 * 2^-24 is even";
  EXPECT_EQ(rounded<f16>(0x1p-14f - 0x1p-25f), 0x1p-14f) << "tie upwards into the normal numbers";
  EXPECT_TRUE(std::signbit(rounded<f16>(-0x1p-30f)));
}

template <class T>
void expect_numbers_return() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto before = std::bit_cast<T>(static_cast<std::uint16_t>(bits));
    const auto value = static_cast<float>(before);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(rounded<T>(value))) << bits;
    } else {
      ASSERT_EQ(T(value).bits, bits);
    }
  }
}

TEST(Bf16, EveryNumberReturnsFromFp32) { expect_numbers_return<bf16>(); }
TEST(F16, EveryNumberReturnsFromFp32) { expect_numbers_return<f16>(); }

TEST(HalfPrecision, NaNStaysNaNWhateverItsPayload) {
  for (std::uint32_t word : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const auto nan = std::bit_cast<float>(word);
    EXPECT_TRUE(std::isnan(rounded<bf16>(nan))) << word;
    EXPECT_TRUE(std::isnan(rounded<f16>(nan))) << word;
  }
}

}  // namespace
}  // namespace loom
