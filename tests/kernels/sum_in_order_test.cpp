// Promise: sum_in_order has the bits of a scalar loop over the inputs in the order given; max_of gives the largest of
//          them.
#include <algorithm>
#include <gtest/gtest.h>
#include <limits>

#include "engine/kernels/reduce.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr std::int64_t kSizes[] = {0, 1, 17, 1024, 1025, 5000};

std::vector<Buffer> ranks(DType dtype, int count, std::int64_t elems) {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < count; ++rank) {
    Doubles values = normals(elems, static_cast<std::uint64_t>(rank + 1));
    for (double& value : values) value *= 100;
    inputs.emplace_back(dtype, values);
  }
  return inputs;
}
std::vector<const void*> pointers(const std::vector<Buffer>& inputs) {
  std::vector<const void*> result;
  for (const Buffer& input : inputs) result.push_back(input.data());
  return result;
}

template <class S>
Buffer scalar_loop(DType dtype, const std::vector<Buffer>& inputs, double factor) {
  std::vector<Doubles> values;
  for (const Buffer& input : inputs) values.push_back(input.values());
  Doubles result(values[0].size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    auto sum = static_cast<S>(values[0][i]);
    for (std::size_t rank = 1; rank < values.size(); ++rank) sum += static_cast<S>(values[rank][i]);
    result[i] = static_cast<double>(static_cast<S>(sum * static_cast<S>(factor)));
  }
  return Buffer(dtype, result);
}

TEST(SumInOrder, HasTheBitsOfTheScalarLoop) {
  for (DType dtype : kFloats) {
    for (int count : {1, 2, 3, 8, 33}) {
      for (std::int64_t elems : kSizes) {
        const auto inputs = ranks(dtype, count, elems);
        const auto from = pointers(inputs);
        for (double factor : {1.0, 1.0 / count}) {
          Buffer out(dtype, static_cast<std::size_t>(elems));
          sum_in_order(dtype, from, factor, elems, out.data());
          const Buffer want = dtype == DType::kF64 ? scalar_loop<double>(dtype, inputs, factor)
                                                   : scalar_loop<float>(dtype, inputs, factor);
          EXPECT_EQ(out.bytes(), want.bytes()) << name(dtype) << ", " << count << " inputs of " << elems;
        }
      }
    }
  }
}

TEST(SumInOrder, InFp32OfHalvesHasTheBitsOfInputsThatWereCastFirst) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (int count : {1, 2, 5}) {
      for (std::int64_t elems : kSizes) {
        const auto inputs = ranks(dtype, count, elems);
        std::vector<Buffer> cast;
        for (const Buffer& input : inputs) cast.emplace_back(DType::kF32, input.values());
        Buffer out(DType::kF32, static_cast<std::size_t>(elems));
        sum_in_order_as_fp32(dtype, pointers(inputs), 1.0 / count, elems, static_cast<float*>(out.data()));
        EXPECT_EQ(out.bytes(), scalar_loop<float>(DType::kF32, cast, 1.0 / count).bytes()) << name(dtype) << elems;
      }
    }
  }
  float out = 0;
  EXPECT_EQ(
      error_text<InvariantError>([&] { sum_in_order_as_fp32(DType::kI8, std::vector<const void*>{&out}, 1, 1, &out); }),
      "internal: sum_in_order_as_fp32 sums fp16 and bf16 inputs, got int8");
}

TEST(SumInOrder, TheOrderIsThatOfTheInputs) {  // 2^24 + 1 + 1 loses both ones in fp32, 1 + 1 + 2^24 none
  const float big = 0x1p24f, one = 1;
  float out = 0;
  sum_in_order(DType::kF32, std::vector<const void*>{&big, &one, &one}, 1, 1, &out);
  EXPECT_EQ(out, 0x1p24f);
  sum_in_order(DType::kF32, std::vector<const void*>{&one, &one, &big}, 1, 1, &out);
  EXPECT_EQ(out, 0x1p24f + 2);
}

TEST(SumInOrder, HalfPrecisionIsRoundedOnce) {  // 256 + 1 + 1 = 258 is a bf16, but 257 is not
  const bf16 big(256.0f), one(1.0f);
  bf16 out;
  sum_in_order(DType::kBF16, std::vector<const void*>{&big, &one, &one}, 1, 1, &out);
  EXPECT_EQ(static_cast<float>(out), 258.0f);
}

TEST(SumInOrder, OutMayBeAnyOfTheInputs) {
  for (DType dtype : kFloats) {
    for (std::size_t place : {0u, 1u, 2u}) {
      auto inputs = ranks(dtype, 3, 3000);
      Buffer apart(dtype, 3000);
      sum_in_order(dtype, pointers(inputs), 0.5, 3000, apart.data());
      sum_in_order(dtype, pointers(inputs), 0.5, 3000, inputs[place].data());
      EXPECT_EQ(inputs[place].bytes(), apart.bytes());
    }
  }
}

TEST(SumInOrder, IntegersAreExact) {
  const std::vector<std::int64_t> a{(std::int64_t{1} << 62) + 1, -5}, b{3, -7};
  std::vector<std::int64_t> out(2);
  sum_in_order(DType::kI64, std::vector<const void*>{a.data(), b.data()}, 1, 2, out.data());
  EXPECT_EQ(out, (std::vector<std::int64_t>{(std::int64_t{1} << 62) + 4, -12}));
  const std::vector<std::int8_t> c{100, -3}, d{7, -4};
  std::vector<std::int8_t> mean(2);
  sum_in_order(DType::kI8, std::vector<const void*>{c.data(), d.data()}, 0.5, 2, mean.data());
  EXPECT_EQ(mean, (std::vector<std::int8_t>{54, -4}));  // 53.5 and -3.5: to nearest, ties to even
}

TEST(SumInOrder, NaNAndInfinityComeThrough) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> a{inf, inf, 1}, b{1, -inf, std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> out(3);
  sum_in_order(DType::kF32, std::vector<const void*>{a.data(), b.data()}, 1, 3, out.data());
  EXPECT_EQ(out[0], inf);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_TRUE(std::isnan(out[2]));
}

TEST(MaxOf, IsTheLargestInput) {
  for (DType dtype : kFloats) {
    for (int count : {1, 2, 3, 8}) {
      for (std::int64_t elems : kSizes) {
        auto inputs = ranks(dtype, count, elems);
        Doubles want = inputs[0].values();
        for (const Buffer& input : inputs) {
          const Doubles values = input.values();
          for (std::size_t i = 0; i < want.size(); ++i) want[i] = std::max(want[i], values[i]);
        }
        Buffer& out = inputs.back();  // out may be one of the inputs
        max_of(dtype, pointers(inputs), elems, out.data());
        EXPECT_EQ(out.values(), want) << name(dtype) << ", " << count << " inputs of " << elems;
      }
    }
  }
  const std::vector<std::int64_t> a{-5, (std::int64_t{1} << 62) + 1}, b{-7, std::int64_t{1} << 62};
  std::vector<std::int64_t> out(2);
  max_of(DType::kI64, std::vector<const void*>{a.data(), b.data()}, 2, out.data());
  EXPECT_EQ(out, a);
}

TEST(MaxOf, IsNaNWhereOneInputIs) {
  for (DType dtype : kFloats) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Buffer a(dtype, Doubles{kNaN, 1, -kInfinity, 2}), b(dtype, Doubles{1, kNaN, -kInfinity, kInfinity});
    Buffer out(dtype, 4);
    max_of(dtype, std::vector<const void*>{a.data(), b.data()}, 4, out.data());
    const Doubles got = out.values();
    EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1])) << name(dtype);
    EXPECT_EQ(got[2], -kInfinity);
    EXPECT_EQ(got[3], kInfinity);
  }
}

TEST(MaxOf, RefusesNoInputsAndBool) {
  bool flag = true;
  EXPECT_EQ(error_text<InvariantError>([&] { max_of(DType::kF32, {}, 0, nullptr); }),
            "internal: max_of needs at least one input, got none");
  EXPECT_EQ(error_text<InvariantError>([&] { max_of(DType::kBool, std::vector<const void*>{&flag}, 1, &flag); }),
            "internal: max_of takes no bool; cast to int32 first");
}

TEST(SumInOrder, RefusesNoInputsAndBool) {
  bool flag = true;
  EXPECT_EQ(error_text<InvariantError>([&] { sum_in_order(DType::kF32, {}, 1, 0, nullptr); }),
            "internal: sum_in_order needs at least one input, got none");
  EXPECT_EQ(
      error_text<InvariantError>([&] { sum_in_order(DType::kBool, std::vector<const void*>{&flag}, 1, 1, &flag); }),
      "internal: sum_in_order cannot add bool; cast to int32 first");
}

}  // namespace
}  // namespace loom::kernels::testing
