// Promise: cast, add, scale, axpy, sum_of_squares and column_sum compute what their names say, rounding once.
#include <gtest/gtest.h>
#include <limits>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

// Packs of 16, four of them, more than one tile.
constexpr std::int64_t kSizes[] = {0, 1, 15, 16, 17, 63, 64, 65, 1000, 2 * 65536 + 21};
constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI8,
                          DType::kI16, DType::kI32,  DType::kI64, DType::kU8};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Doubles combine(const Doubles& a, const Doubles& b, const std::function<double(double, double)>& f) {
  Doubles y(a.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = f(a[i], b[i]);
  return y;
}

TEST(Cast, KeepsSmallIntegersBetweenAllDtypes) {
  const Doubles values{0, 1, 2, 3, 5, 17, 64, 100, 127, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (DType from : kAll) {
    for (DType to : kAll) {
      const Buffer x(from, values);
      Buffer y(to, values.size());
      cast(static_cast<std::int64_t>(values.size()), from, x.data(), to, y.data());
      EXPECT_EQ(y.values(), values) << name(from) << " to " << name(to);
    }
  }
}

TEST(Cast, BetweenFloatsRoundsOnce) {
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      for (std::int64_t elems : kSizes) {
        const Buffer x = normal_buffer(from, elems, 1);
        Buffer y(to, static_cast<std::size_t>(elems));
        cast(elems, from, x.data(), to, y.data());
        EXPECT_EQ(y.bytes(), Buffer(to, x.values()).bytes()) << name(from) << " to " << name(to);
      }
    }
  }
}

TEST(Cast, ToIntegersTruncatesAndStaysInRange) {
  const Doubles x{-1.9, 1.9, 127.9, 128, 1e30, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
  std::vector<std::int8_t> y(x.size());
  cast(7, DType::kF64, x.data(), DType::kI8, y.data());
  EXPECT_EQ(y, (std::vector<std::int8_t>{-1, 1, 127, 127, 127, -128, 0}));
  std::vector<std::int64_t> wide(x.size());
  cast(7, DType::kF64, x.data(), DType::kI64, wide.data());
  EXPECT_EQ(wide[4], std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(wide[5], std::numeric_limits<std::int64_t>::min());
}

TEST(Cast, BoolIsNotZero) {
  const Doubles x{0, 0.25, -3, std::numeric_limits<double>::quiet_NaN()};
  for (DType dtype : kFloats) {
    const Buffer from(dtype, x);
    bool flags[4];
    cast(4, dtype, from.data(), DType::kBool, flags);
    EXPECT_EQ((std::vector<bool>(flags, flags + 4)), (std::vector<bool>{false, true, true, true}));
  }
  const unsigned char bytes[] = {0, 1, 2, 255};  // any byte but 0 is true
  std::vector<float> numbers(4);
  cast(4, DType::kBool, bytes, DType::kF32, numbers.data());
  EXPECT_EQ(numbers, (std::vector<float>{0, 1, 1, 1}));
}

TEST(Cast, KeepsNaNAndInfinity) {
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      const Buffer x(from, Doubles{std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity});
      Buffer y(to, 3);
      cast(3, from, x.data(), to, y.data());
      EXPECT_TRUE(std::isnan(y.values()[0]));
      EXPECT_EQ(y.values()[1], kInfinity);
      EXPECT_EQ(y.values()[2], -kInfinity);
    }
  }
}

TEST(Cast, InPlaceNeedsElementsOfOneSize) {
  Buffer x(DType::kBF16, Doubles{1, 2.5, -4});
  cast(3, DType::kBF16, x.data(), DType::kF16, x.data());
  EXPECT_EQ(x.bytes(), Buffer(DType::kF16, Doubles{1, 2.5, -4}).bytes());
  EXPECT_EQ(error_text<InvariantError>([&] { cast(1, DType::kBF16, x.data(), DType::kF32, x.data()); }),
            "internal: cast from bf16 to fp32 in place, but their elements differ in size; give it another output");
}

TEST(Elementwise, AddScaleAndAxpyEqualTheirDefinition) {
  for (DType dtype : kFloats) {
    const double factor = 0.375;  // exact in every dtype
    for (std::int64_t elems : kSizes) {
      const Buffer a = normal_buffer(dtype, elems, 1);
      const Buffer b = normal_buffer(dtype, elems, 2);
      Buffer y(dtype, static_cast<std::size_t>(elems));
      add(dtype, elems, a.data(), b.data(), y.data());
      expect_close(dtype, y.values(), combine(a.values(), b.values(), std::plus<>()), 1, 8);
      scale(dtype, elems, factor, a.data(), y.data());
      expect_close(dtype, y.values(), combine(a.values(), a.values(), [&](double u, double) { return factor * u; }), 1);
      y = b;
      axpy(dtype, elems, factor, a.data(), y.data());
      expect_close(dtype, y.values(),
                   combine(a.values(), b.values(), [&](double u, double v) { return v + factor * u; }), 2, 8);
    }
  }
}

TEST(Elementwise, OutputsMayBeTheInput) {
  for (DType dtype : kFloats) {
    const std::int64_t elems = 1001;
    const Buffer b = normal_buffer(dtype, elems, 2);
    Buffer a = normal_buffer(dtype, elems, 1);
    Buffer y(dtype, 1001);
    add(dtype, elems, a.data(), b.data(), y.data());
    Buffer in_place = a;
    add(dtype, elems, in_place.data(), b.data(), in_place.data());
    EXPECT_EQ(in_place.bytes(), y.bytes());
    scale(dtype, elems, 3, a.data(), y.data());
    scale(dtype, elems, 3, a.data(), a.data());
    EXPECT_EQ(a.bytes(), y.bytes());
  }
}

TEST(Elementwise, LargeOutputsAreTheSameAsSmallOnes) {  // 32 MiB and more are written past the caches
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const std::int64_t elems = (std::int64_t{32} << 20) / element_bytes(dtype) + 37;
    std::vector<std::byte> x(elems * element_bytes(dtype) + 128);
    std::vector<std::byte> y(x.size());
    const auto aligned = [](std::vector<std::byte>& v) {
      return v.data() + (64 - std::bit_cast<std::uintptr_t>(v.data()) % 64);
    };
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::byte>(i % 61);  // finite numbers only
    add(dtype, elems, aligned(x), aligned(x), aligned(y));
    std::vector<std::byte> small(1000 * element_bytes(dtype));
    for (std::int64_t begin : {std::int64_t{0}, elems - 1000}) {
      const std::size_t offset = begin * element_bytes(dtype);
      add(dtype, 1000, aligned(x) + offset, aligned(x) + offset, small.data());
      EXPECT_TRUE(std::equal(small.begin(), small.end(), aligned(y) + offset)) << begin;
    }
  }
}

TEST(SumOfSquares, IsSummedInDouble) {
  for (DType dtype : kFloats) {
    for (std::int64_t elems : kSizes) {
      const Buffer x = normal_buffer(dtype, elems, 1);
      const double want = dot(x.values(), x.values());
      EXPECT_NEAR(sum_of_squares(dtype, elems, x.data()), want, 1e-12 * want);
    }
  }
  const std::vector<float> huge(20, 1e30f);  // 1e60 is no fp32
  EXPECT_NEAR(sum_of_squares(DType::kF32, 20, huge.data()) / 20e60, 1, 1e-6);
}

TEST(Scale, ByOneInPlaceLeavesEveryBit) {
  std::vector<std::uint32_t> bits{0x7fc00001u, 0x7f800001u, 0x80000000u, 0x00000001u, 0xff800000u, 0x3f800000u};
  const std::vector<std::uint32_t> before = bits;
  scale(DType::kF32, 6, 1, bits.data(), bits.data());
  EXPECT_EQ(bits, before);
  EXPECT_EQ(error_text<ModelError>([&] { scale(DType::kI32, 6, 1, bits.data(), bits.data()); }),
            "scale takes fp32, bf16, fp16 or fp64, got int32; cast it");
}

TEST(SumOfSquares, OfANaNIsNaN) {
  std::vector<float> x(100, 1);
  x[77] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares(DType::kF32, 100, x.data())));
}

TEST(ColumnSum, AddsTheRows) {
  struct Sizes {
    std::int64_t rows, cols;
  };
  for (DType dtype : kFloats) {
    for (Sizes n : {Sizes{0, 5}, {1, 17}, {7, 1}, {33, 40}, {1100, 2051}}) {
      const Buffer x = normal_buffer(dtype, n.rows * n.cols, 1);
      Buffer out = normal_buffer(dtype, n.cols, 2);
      const Doubles values = x.values();
      Doubles want(static_cast<std::size_t>(n.cols));
      for (std::size_t i = 0; i < values.size(); ++i) want[i % want.size()] += values[i];
      column_sum(dtype, n.rows, n.cols, x.data(), out.data());
      // Partial sums reach about sqrt(rows) * 4 and each of `rows` additions rounds, mostly at random.
      expect_close(dtype, out.values(), want, 4 * std::sqrt(static_cast<double>(n.rows) + 1),
                   4 * std::sqrt(static_cast<double>(n.rows) + 1));
    }
  }
}

TEST(Elementwise, RefuseIntegersByName) {
  EXPECT_EQ(error_text<ModelError>([] { add(DType::kI64, 0, nullptr, nullptr, nullptr); }),
            "add takes fp32, bf16, fp16 or fp64, got int64; cast it");
  EXPECT_EQ(error_text<ModelError>([] { sum_of_squares(DType::kBool, 0, nullptr); }),
            "sum_of_squares takes fp32, bf16, fp16 or fp64, got bool; cast it");
  RankContext context(3, 4);
  const RankScope scope(context);
  EXPECT_EQ(error_text<ModelError>([] { scale(DType::kU8, 0, 1, nullptr, nullptr); }),
            "[rank 3] scale takes fp32, bf16, fp16 or fp64, got uint8; cast it");
}

}  // namespace
}  // namespace loom::kernels::testing
