#include "engine/tensor/ops/linear_rows.h"

#include <string_view>

#include "engine/kernels/fused.h"
#include "engine/kernels/gemm.h"
#include "engine/tensor/ops/products.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

std::byte* start_of_row(const Tensor& x, std::int64_t row) {
  return static_cast<std::byte*>(x.raw()) + row * x.shape()[-1] * element_bytes(x.dtype());
}

void check_ranges(const RowRanges& from, const RowRanges& to) {
  require(from.rows == to.rows && from.count == to.count, "{} ranges of {} rows go to {} ranges of {}", from.count,
          from.rows, to.count, to.rows);
}

// Of the ranges; of one where they are one on both sides.
struct RowPairs {
  RowRanges from, to;

  RowPairs(const RowRanges& given_from, const RowRanges& given_to) : from(given_from), to(given_to) {
    check_ranges(from, to);
    if (!from.are_one() || !to.are_one()) return;
    from = {from.begin, from.rows * from.count};
    to = {to.begin, to.rows * to.count};
  }
  std::int64_t all() const { return from.rows * from.count; }
};

// op.n and op.k, transpose_b and bias are given.
void multiply_row_ranges(std::string_view name, kernels::Gemm op, const Tensor& a, const Tensor& b, const Tensor& c,
                         const RowPairs& rows) {
  op.m = rows.from.rows;
  op.ab = a.dtype();
  op.c = c.dtype();
  const auto batch = rows.from.count;
  Cost cost = gemm_cost(op, batch, {}, b, {});
  cost.dtype = a.dtype();
  cost.read_bytes += rows.all() * op.k * element_bytes(a.dtype());
  cost.written_bytes += rows.all() * op.n * element_bytes(c.dtype());
  launch(name, cost, [&] {
    for (std::int64_t i = 0; i < batch; ++i) {
      kernels::gemm(op, start_of_row(a, rows.from.row_of(i)), b.raw(), start_of_row(c, rows.to.row_of(i)));
    }
  });
}

}  // namespace

void linear_of_rows(const Tensor& x, const RowRanges& from, const LinearMatrix& matrix, const Tensor& y,
                    const RowRanges& to) {
  const kernels::Gemm op{.n = y.shape()[-1],
                         .k = x.shape()[-1],
                         .transpose_b = matrix.out_in,
                         .bias = matrix.bias.defined() ? matrix.bias.raw() : nullptr};
  multiply_row_ranges("linear", op, x, matrix.weight, y, {from, to});
}

void linear_dx_of_rows(const Tensor& dy, const RowRanges& from, const LinearMatrix& matrix, const Tensor& dx,
                       const RowRanges& to) {
  const kernels::Gemm op{.n = dx.shape()[-1], .k = dy.shape()[-1], .transpose_b = !matrix.out_in};
  multiply_row_ranges("linear_dx", op, dy, matrix.weight, dx, {from, to});
}

void add_rows(const Tensor& x, const RowRanges& from, const Tensor& y, const RowRanges& to) {
  const RowPairs rows(from, to);
  const std::int64_t bytes = rows.all() * x.shape()[-1] * element_bytes(x.dtype());
  const Cost cost{static_cast<double>(rows.all() * x.shape()[-1]), 2 * bytes, bytes};
  launch("grad_add", cost, [&] {
    for (std::int64_t i = 0; i < rows.from.count; ++i) {
      std::byte* const place = start_of_row(y, rows.to.row_of(i));
      kernels::add(x.dtype(), rows.from.rows * x.shape()[-1], start_of_row(x, rows.from.row_of(i)), place, place);
    }
  });
}

Tensor linear_dw(const Tensor& x, const Tensor& dy, bool out_in) {
  const std::int64_t m = row_count(dy), n = dy.shape()[-1], k = x.shape()[-1];
  const Tensor dw = Tensor::empty(out_in ? Shape{n, k} : Shape{k, n}, dy.dtype());
  if (out_in) {
    multiply("linear_dw", {.m = n, .n = k, .k = m, .transpose_a = true}, dy, x, dw);
  } else {
    multiply("linear_dw", {.m = k, .n = n, .k = m, .transpose_a = true}, x, dy, dw);
  }
  return dw;
}

Tensor bias_gradient(const Tensor& dy) {
  const Tensor db = Tensor::empty({dy.shape()[-1]}, dy.dtype());
  launch("bias_grad", pass_cost(static_cast<double>(dy.numel()), {dy}, {db}),
         [&] { kernels::column_sum(dy.dtype(), row_count(dy), dy.shape()[-1], dy.raw(), db.raw()); });
  return db;
}

}  // namespace loom::ops
