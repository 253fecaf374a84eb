// Promise: rope() turns every pair of halves by its table's angle, backward by the transpose, in place if asked.
#include <gtest/gtest.h>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

// B batch, S seq, H heads, D head_dim.
struct Sizes {
  std::int64_t b, s, h, d;
  std::int64_t elems() const { return b * s * h * d; }
};
constexpr Sizes kSizes[] = {{1, 1, 1, 2}, {2, 3, 2, 64}, {1, 5, 3, 34}, {2, 40, 4, 128}, {0, 4, 2, 8}};

// y = x cos + rotate_half(x) sin, rotate_half(x) = (-x2, x1), as Hugging Face writes it.
Doubles reference(Sizes n, const Doubles& x, const Doubles& cos, const Doubles& sin) {
  Doubles y(x.size());
  for (std::int64_t at = 0; at < n.elems(); ++at) {
    const std::int64_t i = at % n.d;
    const std::int64_t position = at / (n.d * n.h) % n.s;
    const bool lower = i < n.d / 2;
    const double turned =
        lower ? -x[static_cast<std::size_t>(at + n.d / 2)] : x[static_cast<std::size_t>(at - n.d / 2)];
    const auto table = static_cast<std::size_t>(position * n.d + i);
    y[static_cast<std::size_t>(at)] = x[static_cast<std::size_t>(at)] * cos[table] + turned * sin[table];
  }
  return y;
}

TEST(Rope, EqualsItsDefinitionForEveryPairOfDtypes) {
  for (DType dtype : kFloats) {
    for (DType table_dtype : kFloats) {
      for (Sizes n : kSizes) {
        const Buffer x = normal_buffer(dtype, n.elems(), 1);
        const Buffer cos = normal_buffer(table_dtype, n.s * n.d, 2);
        const Buffer sin = normal_buffer(table_dtype, n.s * n.d, 3);
        Buffer y(dtype, static_cast<std::size_t>(n.elems()));
        rope({dtype, table_dtype, false, n.b, n.s, n.h, n.d}, x.data(), cos.data(), sin.data(), y.data());
        expect_close(dtype, y.values(), reference(n, x.values(), cos.values(), sin.values()), 4, 16);
      }
    }
  }
}

TEST(Rope, BackwardIsTheTranspose) {  // <rope(x), dy> = <x, rope'(dy)>, even for halves that differ
  for (Sizes n : kSizes) {
    const Buffer x = normal_buffer(DType::kF64, n.elems(), 1);
    const Buffer dy = normal_buffer(DType::kF64, n.elems(), 4);
    const Buffer cos = normal_buffer(DType::kF64, n.s * n.d, 2);
    const Buffer sin = normal_buffer(DType::kF64, n.s * n.d, 3);
    Buffer dx(DType::kF64, static_cast<std::size_t>(n.elems()));
    rope({DType::kF64, DType::kF64, true, n.b, n.s, n.h, n.d}, dy.data(), cos.data(), sin.data(), dx.data());
    const double want = dot(reference(n, x.values(), cos.values(), sin.values()), dy.values());
    EXPECT_NEAR(dot(x.values(), dx.values()), want, 1e-12 * static_cast<double>(n.elems() + 1));
  }
}

TEST(Rope, BackwardUndoesForwardForTrueAngles) {
  constexpr Sizes n{1, 6, 2, 32};
  Doubles cos, sin;
  for (std::int64_t position = 0; position < n.s; ++position) {
    for (std::int64_t i = 0; i < n.d; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i % (n.d / 2)) / 16);
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  for (DType dtype : kFloats) {
    const Buffer x = normal_buffer(dtype, n.elems(), 1);
    const Buffer c(DType::kF64, cos), s(DType::kF64, sin);
    Buffer y = x;
    rope({dtype, DType::kF64, false, n.b, n.s, n.h, n.d}, y.data(), c.data(), s.data(), y.data());
    rope({dtype, DType::kF64, true, n.b, n.s, n.h, n.d}, y.data(), c.data(), s.data(), y.data());
    // y was rounded once in between: 4 * rounding of numbers up to 4.
    expect_close(dtype, y.values(), x.values(), 4 * 4 * rounding(dtype) / rounding(stat_dtype(dtype)));
  }
}

TEST(Rope, InPlaceGivesTheSameBits) {
  for (DType dtype : kFloats) {
    for (bool backward : {false, true}) {
      for (Sizes n : kSizes) {
        Buffer x = normal_buffer(dtype, n.elems(), 1);
        const Buffer cos = normal_buffer(dtype, n.s * n.d, 2);
        const Buffer sin = normal_buffer(dtype, n.s * n.d, 3);
        Buffer y(dtype, static_cast<std::size_t>(n.elems()));
        rope({dtype, dtype, backward, n.b, n.s, n.h, n.d}, x.data(), cos.data(), sin.data(), y.data());
        rope({dtype, dtype, backward, n.b, n.s, n.h, n.d}, x.data(), cos.data(), sin.data(), x.data());
        EXPECT_EQ(x.bytes(), y.bytes());
      }
    }
  }
}

TEST(Rope, RefusesAnOddHeadDim) {
  EXPECT_EQ(error_text<ModelError>([] {
              rope({DType::kF32, DType::kF32, false, 1, 1, 1, 5}, nullptr, nullptr, nullptr, nullptr);
            }),
            "rope rotates pairs, but head_dim is 5; it must be even");
}

}  // namespace
}  // namespace loom::kernels::testing
