// A product in double, element by element.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernels/gemm.h"
#include "tests/support/typed_array.h"

namespace loom::test {

class GemmReference {
 public:
  GemmReference(const TypedArray& a, const TypedArray& b, const TypedArray& bias, const TypedArray& c)
      : a_(a.doubles()), b_(b.doubles()), bias_(bias.doubles()), c_(c.doubles()) {}

  // The element of C at `row` and `column`; op.bias is not read.
  double at(const kernels::Gemm& op, bool with_bias, std::int64_t row, std::int64_t column) const {
    double sum = op.accumulate ? c_[static_cast<std::size_t>(row * op.n + column)] : 0.0;
    if (with_bias) sum += bias_[static_cast<std::size_t>(column)];
    const std::int64_t a = op.transpose_a ? row : row * op.k, a_step = op.transpose_a ? op.m : 1;
    const std::int64_t b = op.transpose_b ? column * op.k : column, b_step = op.transpose_b ? 1 : op.n;
    for (std::int64_t i = 0; i < op.k; ++i) {
      sum += a_[static_cast<std::size_t>(a + i * a_step)] * b_[static_cast<std::size_t>(b + i * b_step)];
    }
    return sum;
  }

 private:
  std::vector<double> a_, b_, bias_, c_;
};

}  // namespace loom::test
