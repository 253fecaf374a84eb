// Promise: every set of register tiles that this processor has multiplies right, at any size and form; fp32 has the
//          same bits with all of them; the bits of an element depend on its row, its column and K alone; AMX tiles
//          are right on matrix registers of plain C++.
// World:   no ranks, or one rank with a pool of threads; numbers in [-1, 1).

#include <array>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <span>
#include <vector>

#include "engine/core/rounding.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/gemm_amx_tile.h"
#include "engine/kernels/gemm_cut.h"
#include "engine/kernels/gemm_own.h"
#include "tests/kernels/products/gemm_reference.h"
#include "tests/support/typed_array.h"

namespace loom::kernels {
namespace {

using test::TypedArray;

std::span<const GemmKernels* const> sets() {
  const GemmKernelSets found = gemm_kernel_sets();
  return {found.first, static_cast<std::size_t>(found.count)};
}

std::string describe(const GemmKernels& kernels, const Gemm& op) {
  return fmt::format("{}: m={} n={} k={} ta={} tb={} {}->{} accumulate={} bias={}", kernels.name, op.m, op.n, op.k,
                     op.transpose_a, op.transpose_b, name(op.ab), name(op.c), op.accumulate, op.bias != nullptr);
}

struct Operands {
  explicit Operands(const Gemm& op)
      : a(TypedArray::random(op.ab, op.m * op.k, 1)),
        b(TypedArray::random(op.ab, op.k * op.n, 2)),
        bias(TypedArray::random(op.ab, op.n, 3)),
        c(TypedArray::random(op.c, op.m * op.n, 4)) {}
  TypedArray a, b, bias, c;
};

test::GemmReference reference_of(const Operands& x) { return {x.a, x.b, x.bias, x.c}; }

TypedArray product(const GemmKernels& kernels, const Gemm& op, const Operands& x, int threads = 1) {
  TypedArray c = x.c;
  gemm_own(kernels, op, threads, x.a.data(), x.b.data(), c.data());
  return c;
}

// Of fp32 sums of k products of numbers in [-1, 1), one after another: partial sums grow with sqrt(k), so their
// roundings add up to about k / 7 units; five times that, and more for few.
double sum_error(std::int64_t k) {
  return 0x1p-24 * (8 * std::sqrt(static_cast<double>(k) + 1) + 0.75 * static_cast<double>(k));
}

// Some elements of every region of C.
void expect_right(const GemmKernels& kernels, const Gemm& op, const Operands& x, const test::GemmReference& reference) {
  const TypedArray c = product(kernels, op, x);
  const double unit = op.c == DType::kBF16 ? 0x1p-8 : op.c == DType::kF16 ? 0x1p-11 : 0x1p-24;
  const std::int64_t step = std::max<std::int64_t>(1, op.m * op.n / 211);
  for (std::int64_t i = 0; i < op.m * op.n; i += step) {
    const double expected = reference.at(op, op.bias != nullptr, i / op.n, i % op.n);
    const double allowed = unit * 1.01 * std::abs(expected) + sum_error(op.k) + (op.c == DType::kF16 ? 1e-7 : 0);
    ASSERT_LE(std::abs(c.get(i) - expected), allowed)
        << describe(kernels, op) << " at [" << i / op.n << ", " << i % op.n << "]";
  }
}

struct Size {
  std::int64_t m, n, k;
};

// Transposed or not, with a bias, and added to C.
void expect_right_in_all_forms(std::span<const GemmKernels* const> sets, Size size, DType ab, DType c) {
  Gemm op;
  op.m = size.m, op.n = size.n, op.k = size.k, op.ab = ab, op.c = c;
  const Operands x(op);
  const test::GemmReference reference = reference_of(x);
  for (const GemmKernels* kernels : sets) {
    for (int form = 0; form < 12; ++form) {
      op.transpose_a = (form & 1) != 0;
      op.transpose_b = (form & 2) != 0;
      op.bias = form / 4 == 1 ? x.bias.data() : nullptr;
      op.accumulate = form / 4 == 2;
      expect_right(*kernels, op, x, reference);
    }
  }
}

constexpr std::array<std::pair<DType, DType>, 5> kTypes{{{DType::kF32, DType::kF32},
                                                         {DType::kBF16, DType::kBF16},
                                                         {DType::kBF16, DType::kF32},
                                                         {DType::kF16, DType::kF16},
                                                         {DType::kF16, DType::kF32}}};

TEST(GemmSets, MultiplyRightAtEveryRestOfATile) {
  for (const auto& [ab, c] : kTypes) {
    for (const std::int64_t m : {1, 6, 7, 9, 16}) {
      for (const std::int64_t n : {1, 16, 17, 49, 65}) expect_right_in_all_forms(sets(), {m, n, 19 + m}, ab, c);
    }
  }
}

TEST(GemmSets, MultiplyRightOverSeveralBlocksOfKAndColumns) {
  for (const auto& [ab, c] : kTypes) {
    expect_right_in_all_forms(sets(), {41, 70, 2 * kMostSteps + 2 * kMostSteps + 6}, ab, c);
    expect_right_in_all_forms(sets(), {45, 1300, 1030}, ab, c);
  }
}

TEST(GemmSets, MultiplyRightOverSeveralBlocksOfPackedRows) {
  for (const auto& [type, k] : {std::pair{DType::kF32, 900}, std::pair{DType::kBF16, 2 * 900}}) {
    Gemm op;
    op.m = kMostPackedBytes / 4 / kMostSteps + 100, op.n = 35, op.k = k, op.transpose_a = true;
    op.ab = op.c = type;
    const Operands x(op);
    const test::GemmReference reference = reference_of(x);
    for (const GemmKernels* kernels : sets()) expect_right(*kernels, op, x, reference);
  }
}

TEST(GemmSets, AddToAnotherTensorWithTheBitsOfTwoSteps) {
  for (const GemmKernels* kernels : sets()) {
    for (const auto& [ab, c] : kTypes) {
      for (const std::int64_t k : {70, 1300}) {  // one and several blocks
        Gemm op;
        op.m = 45, op.n = 131, op.k = k, op.ab = ab, op.c = c;
        const Operands x(op);
        op.bias = x.bias.data();
        const TypedArray alone = product(*kernels, op, x), before = TypedArray::random(c, op.m * op.n, 5);
        TypedArray expected = before, sum = before;
        add(c, op.m * op.n, before.data(), alone.data(), expected.data());
        op.add_to = sum.data();
        product(*kernels, op, x);
        EXPECT_TRUE(sum == expected) << describe(*kernels, op);
      }
    }
  }
}

TEST(GemmSets, HaveTheSameBitsInFp32) {
  for (int form = 0; form < 4; ++form) {
    Gemm op;
    op.m = 75, op.n = 131, op.k = 1200;
    op.transpose_a = (form & 1) != 0, op.transpose_b = (form & 2) != 0;
    const Operands x(op);
    for (const GemmKernels* kernels : sets())
      EXPECT_TRUE(product(*kernels, op, x) == product(*sets().front(), op, x)) << describe(*kernels, op);
  }
}

TEST(GemmSets, GiveARowTheSameBitsAmongAnyOtherRows) {
  for (const GemmKernels* kernels : sets()) {
    for (const auto& [ab, c] : kTypes) {
      Gemm op;
      op.m = 203, op.n = 150, op.k = 1100, op.ab = ab, op.c = c, op.transpose_b = true;
      const Operands x(op);
      const TypedArray all = product(*kernels, op, x);
      for (const std::int64_t row : {0, 7, 100, 202}) {
        Gemm alone = op;
        alone.m = 1;
        TypedArray one = TypedArray::filled(c, op.n, 0);
        gemm_own(*kernels, alone, 1, x.a.at(row * op.k), x.b.data(), one.data());
        EXPECT_EQ(std::memcmp(one.data(), all.at(row * op.n), op.n * element_bytes(c)), 0) << describe(*kernels, op);
      }
    }
  }
}

TEST(GemmSets, GiveAColumnTheSameBitsAmongAnyOtherColumns) {
  for (const GemmKernels* kernels : sets()) {
    for (const auto& [ab, c] : kTypes) {
      Gemm op;
      op.m = 20, op.n = 150, op.k = 1100, op.ab = ab, op.c = c, op.transpose_b = true;
      const Operands x(op);
      const TypedArray all = product(*kernels, op, x);
      for (const std::int64_t column : {0, 47, 48, 149}) {
        Gemm alone = op;
        alone.n = 1;
        TypedArray one = TypedArray::filled(c, op.m, 0);
        gemm_own(*kernels, alone, 1, x.a.data(), x.b.at(column * op.k), one.data());
        for (std::int64_t row = 0; row < op.m; ++row)
          EXPECT_EQ(one.get(row), all.get(row * op.n + column)) << describe(*kernels, op);
      }
    }
  }
}

TEST(GemmSets, GiveTheSameBitsHoweverTheProductIsCut) {
  test::WithThreads pool(3);
  for (const auto& [ab, c] : kTypes) {
    Gemm op;
    op.m = 310, op.n = 290, op.k = 1100, op.ab = ab, op.c = c;
    const Operands x(op);
    for (const GemmKernels* kernels : sets()) {
      for (int form = 0; form < 4; ++form) {
        op.transpose_a = (form & 1) != 0, op.transpose_b = (form & 2) != 0;
        const TypedArray whole = product(*kernels, op, x, 1);
        for (const int threads : {2, 3, 8})
          EXPECT_TRUE(product(*kernels, op, x, threads) == whole) << describe(*kernels, op) << " threads=" << threads;
      }
    }
  }
}

// The smallest number is one that products of fp32 words reach; pairs of bf16 flush it in the multiplication.
TEST(GemmSets, KeepSubnormalsNaNAndInfinityOfSixteenBitResults) {
  for (const GemmKernels* kernels : sets()) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      Gemm op;
      op.m = 3, op.n = 20, op.k = 3, op.ab = op.c = dtype;
      const double smallest = dtype == DType::kF16 ? 0x1p-24 : 0x1p-133;
      TypedArray a = TypedArray::filled(op.ab, op.m * op.k, 0);
      const TypedArray b = TypedArray::filled(op.ab, op.k * op.n, 1);
      a.set(0, smallest);
      a.set(3, std::nan(""));
      a.set(6, HUGE_VAL);
      TypedArray c = TypedArray::filled(op.c, op.m * op.n, 0);
      gemm_own(*kernels, op, 1, a.data(), b.data(), c.data());
      EXPECT_EQ(c.get(0), smallest) << kernels->name << " " << name(dtype);
      EXPECT_TRUE(std::isnan(c.get(20 + 19))) << kernels->name;
      EXPECT_TRUE(std::isinf(c.get(40 + 19))) << kernels->name;
    }
  }
}

// A bias that only the sum with zero products lets through.
TEST(GemmSets, RoundSubnormalSumsToBf16) {
  for (const GemmKernels* kernels : sets()) {
    Gemm op;
    op.m = 8, op.n = 48, op.k = 4, op.ab = op.c = DType::kBF16;
    const TypedArray a = TypedArray::filled(op.ab, op.m * op.k, 0), b = TypedArray::filled(op.ab, op.k * op.n, 1);
    const TypedArray bias = TypedArray::filled(op.ab, op.n, 0x1p-130);
    op.bias = bias.data();
    TypedArray c = TypedArray::filled(op.c, op.m * op.n, 0);
    gemm_own(*kernels, op, 1, a.data(), b.data(), c.data());
    for (std::int64_t i = 0; i < op.m * op.n; ++i) ASSERT_EQ(c.get(i), 0x1p-130) << kernels->name;
  }
}

// 16 (bf16: 32) to 96 rows change places with B, others do not.
TEST(GemmSets, GiveFewRowsTheBitsOfManyInEveryForm) {
  test::WithThreads pool(2);
  for (const GemmKernels* kernels : sets()) {
    for (const auto& [ab, c] : kTypes) {
      Gemm op;
      op.m = 97, op.n = 601, op.k = 1030, op.ab = ab, op.c = c, op.transpose_b = true;
      const Operands x(op);
      op.bias = x.bias.data();
      const TypedArray many = product(*kernels, op, x);
      for (const std::int64_t rows : {1, 17, 33, 96}) {
        op.m = rows;
        for (const int threads : {1, 2}) {
          TypedArray few = TypedArray::filled(c, rows * op.n, 0);
          gemm_own(*kernels, op, threads, x.a.data(), x.b.data(), few.data());
          EXPECT_EQ(std::memcmp(few.data(), many.data(), rows * op.n * element_bytes(c)), 0) << describe(*kernels, op);
        }
      }
    }
  }
}

TEST(GemmCut, CutsKByItsLengthAlone) {
  if (sets().empty()) GTEST_SKIP() << "no own kernels for this processor";
  Gemm op;
  op.m = op.n = 1, op.k = 896;
  const GemmCut small = cut_gemm(op, *sets().front(), 1);
  op.m = op.n = 4096;
  const GemmCut large = cut_gemm(op, *sets().back(), 7);
  EXPECT_EQ(small.steps.length, 448);
  EXPECT_EQ(large.steps.length, 448);
  EXPECT_EQ(large.steps.count(), 2);
}

TEST(GemmCut, GivesEveryThreadATask) {
  if (sets().empty()) GTEST_SKIP() << "no own kernels for this processor";
  for (const bool transpose_a : {false, true}) {
    for (const Size size : {Size{512, 512, 512}, Size{64, 896, 896}, Size{2048, 40, 512}}) {
      Gemm op;
      op.m = size.m, op.n = size.n, op.k = size.k, op.transpose_a = transpose_a;
      for (const int threads : {1, 2, 3}) {
        const GemmCut cut = cut_gemm(op, *sets().front(), threads);
        EXPECT_GE(cut.rows.count() * cut.columns.count(), std::min<std::int64_t>(threads, 2));
      }
    }
  }
}

// Matrix registers of plain C++: 16 rows of 16 words.
struct PlainRegisters {
  using Register = std::array<std::array<std::uint32_t, kAmxSide>, kAmxSide>;
  static std::array<Register, 8>& all() {
    static std::array<Register, 8> registers;
    return registers;
  }
  static void begin() {}
  template <int kC>
  static void zero() {
    all()[kC] = {};
  }
  template <int kRegister>
  static void load(const void* from, std::int64_t row_bytes) {
    for (std::int64_t r = 0; r < kAmxSide; ++r)
      std::memcpy(all()[kRegister][r].data(), static_cast<const char*>(from) + r * row_bytes, 64);
  }
  template <int kC, int kA, int kB>
  static void dot() {
    const auto half = [](std::uint32_t word, int which) {
      return std::bit_cast<float>(which == 0 ? word << 16 : word & 0xffff0000u);
    };
    for (std::int64_t r = 0; r < kAmxSide; ++r) {
      for (std::int64_t n = 0; n < kAmxSide; ++n) {
        float sum = std::bit_cast<float>(all()[kC][r][n]);
        for (std::int64_t k = 0; k < kAmxSide; ++k) {
          for (int which = 0; which < 2; ++which) sum += half(all()[kA][r][k], which) * half(all()[kB][k][n], which);
        }
        all()[kC][r][n] = std::bit_cast<std::uint32_t>(sum);
      }
    }
  }
  template <int kC>
  static void store(void* to, std::int64_t row_bytes) {
    for (std::int64_t r = 0; r < kAmxSide; ++r)
      std::memcpy(static_cast<char*>(to) + r * row_bytes, all()[kC][r].data(), 64);
  }
  template <int kWidth>
  static void write(const GemmTile& t, const float* sums) {
    for (std::int64_t r = 0; r < t.rows; ++r) {
      for (std::int64_t n = 0; n < t.columns; ++n) {
        float sum = sums[r * kWidth + n];
        if (t.sums != nullptr) sum = t.sums[r * t.sums_row + n] + sum;
        if (t.bias != nullptr) sum += t.bias[n];
        t.type == OutputType::kFp32 ? write_one<float>(t, r * t.c_row + n, sum)
                                    : write_one<bf16>(t, r * t.c_row + n, sum);
      }
    }
  }
  template <class T>
  static void write_one(const GemmTile& t, std::int64_t at, float sum) {
    T& c = static_cast<T*>(t.c)[at];
    if (t.rounds_first) sum = static_cast<float>(T(sum));
    c = T(t.adds_c ? static_cast<float>(c) + sum : sum);
  }
};

// Words of a bf16 matrix by the contract of PackB and of packs_along_k.
void pack_b_plainly(const PackB& op) {
  for (std::int64_t panel = 0; panel < op.panels; ++panel) {
    for (std::int64_t s = 0; s < op.steps; ++s) {
      for (std::int64_t n = 0; n < op.width; ++n) {
        std::uint16_t halves[2] = {};
        const std::int64_t column = panel * op.columns + n;
        for (std::int64_t half = 0; half < 2 && n < op.columns; ++half) {
          const std::int64_t k = 2 * s + half;
          std::memcpy(&halves[half], op.b + (op.transposed ? column * op.stride + k * 2 : k * op.stride + column * 2),
                      2);
        }
        std::memcpy(op.out + (panel * op.steps + s) * op.width + n, halves, 4);
      }
    }
  }
}
void pack_a_plainly(const PackA& op) {
  for (std::int64_t r = 0; r < round_up(op.rows, kAmxRows); ++r) {
    for (std::int64_t s = 0; s < op.steps; ++s) {
      std::uint16_t halves[2] = {};
      for (std::int64_t half = 0; half < 2 && r < op.rows; ++half) {
        const std::int64_t k = 2 * s + half;
        std::memcpy(&halves[half], op.a + (op.transposed ? k * op.stride + r * 2 : r * op.stride + k * 2), 2);
      }
      std::memcpy(op.out + r * op.steps + s, halves, 4);
    }
  }
}

template <int kWidth>
std::array<TileSet::Multiply, kAmxRows> amx_tiles() {
  std::array<TileSet::Multiply, kAmxRows> tiles;
  tiles.fill(&AmxTile<PlainRegisters, kWidth>::multiply);
  return tiles;
}

TEST(AmxTile, MultipliesRightOnRegistersOfPlainCode) {
  if (sets().empty()) GTEST_SKIP() << "no own kernels for this processor";
  static const auto wide = amx_tiles<32>();
  static const auto narrow = amx_tiles<16>();
  const TileSet tiles = {kAmxRows, {32, 32, 16},    {wide.data(), wide.data(), narrow.data()},
                         true,     &pack_a_plainly, &pack_b_plainly};
  const GemmKernels kernels = {"AMX of plain code", sets().front()->fp32, &tiles};
  const GemmKernels* const one[] = {&kernels};
  for (const DType c : {DType::kF32, DType::kBF16}) {
    for (const Size size : {Size{1, 1, 2}, Size{16, 16, 32}, Size{33, 49, 70}, Size{40, 70, 1100}, Size{64, 96, 64}})
      expect_right_in_all_forms(one, size, DType::kBF16, c);
  }
}

}  // namespace
}  // namespace loom::kernels
