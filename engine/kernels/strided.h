// Kernels over general shapes: element-wise with repeated dims, sums over a dim, reordered dims. They serve operators
// of users' models; shapes that a transformer's step is made of have kernels of their own (fused.h).
//
// Arithmetic  in fp32 (fp64 for fp64), rounded once; sums in the order of their elements, so that bits depend on no
//             thread count.
// Errors      ModelError naming the kernel for a dtype it does not take; shapes are the caller's business.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/dtype.h"

namespace loom::kernels {

// Dims of a result, slowest first, and for each operand its stride in elements: 0 where it is repeated.
struct BroadcastDims {
  std::vector<std::int64_t> sizes, a, b;
};
enum class BinaryOp : std::uint8_t { kAdd, kSub, kMul, kDiv };
// y [sizes] = a op b; floating dtypes.
void binary(BinaryOp op, DType dtype, const BroadcastDims& dims, const void* a, const void* b, void* y);

enum class UnaryOp : std::uint8_t { kExp, kLog };
void unary(UnaryOp op, DType dtype, std::int64_t elems, const void* x, void* y);

// y [outer, inner] = factor * sum over k of x [outer, dim, inner]; `to` is dtype or its accumulation dtype.
struct DimSum {
  DType dtype = DType::kF32;
  DType to = DType::kF32;
  std::int64_t outer = 0;
  std::int64_t dim = 0;
  std::int64_t inner = 0;
  double factor = 1;
};
void sum_dim(const DimSum& op, const void* x, void* y);
// y [outer, dim, inner] = factor * x [outer, inner], both in dtype.
void repeat_dim(const DimSum& op, const void* x, void* y);

// y = x with its dims in the order `order`: y's dim d is x's dim order[d]. Any dtype.
void permute_dims(std::int64_t element_bytes, const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
                  const void* x, void* y);

// The numbers of the rows from `row` to the next run's: element i of row r has
// uniform_at(key, first + (r - row) 2^32 + i).
struct DropoutRun {
  std::int64_t row = 0;
  std::uint64_t key = 0;
  std::uint64_t first = 0;
};
// y = x / (1 - p) where the element's number is at least p, else 0. x [elems / width, width], 0 <= p < 1.
struct Dropout {
  DType dtype = DType::kF32;
  std::int64_t elems = 0;
  std::int64_t width = 0;
  double p = 0;
  std::vector<DropoutRun> runs;  // by ascending row, the first from row 0
};
void dropout(const Dropout& op, const void* x, void* y);

// y [rows of bags, dim]: bag b is the sum of rows [begin[b], begin[b + 1]) of x, times 1 / their number when `mean`; an
// empty bag is 0. `begin` has bags + 1 elements, ascending.
struct Bags {
  DType dtype = DType::kF32;
  std::int64_t dim = 0;
  bool mean = false;
  std::vector<std::int64_t> begin;
};
void bag_sum(const Bags& op, const void* x, void* y);
// dx [rows, dim] of bag_sum.
void bag_sum_grad(const Bags& op, const void* dy, void* dx);

}  // namespace loom::kernels
