#include <algorithm>
#include <cstring>

#include "engine/core/shape_text.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/gemm.h"
#include "engine/kernels/row_products.h"
#include "engine/tensor/kept_results.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/decoding.h"
#include "engine/tensor/ops/linear_rows.h"
#include "engine/tensor/ops/padding.h"
#include "engine/tensor/ops/products.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

struct Extra {
  Tensor bias{};
  Tensor add_to{};
};

void run_gemm(std::string_view name, kernels::Gemm op, const Tensor& a, const Tensor& b, const Tensor& c,
              const Extra& extra = {}) {
  op.ab = a.dtype();
  op.c = c.dtype();
  launch(name, gemm_cost(op, 1, a, b, c), [&] {
    op.bias = raw_or_null(extra.bias);
    op.add_to = raw_or_null(extra.add_to);
    if (DecodingScope::is_current() && !op.transpose_a && op.add_to == nullptr && kernels::are_few_rows(op.m, op.ab)) {
      return kernels::multiply_rows(
          {.m = op.m, .n = op.n, .k = op.k, .transposed = op.transpose_b, .dtype = op.ab, .bias = op.bias}, a.raw(),
          b.raw(), c.raw());
    }
    kernels::gemm(op, a.raw(), b.raw(), c.raw());
  });
}

// out_in: the weight is [N, K] (torch.nn.Linear), else [K, N] (Conv1D).
Tensor linear_op(const Tensor& x, const Tensor& weight, const Tensor& bias, bool out_in) {
  const bool fits = x.shape().ndim() >= 1 && weight.shape().ndim() == 2 &&
                    weight.shape()[out_in ? 1 : 0] == x.shape()[-1] && weight.dtype() == x.dtype();
  check_model(shapes_hold(fits, "linear", {x, weight}), "linear: input {} {} with weight {} {}; {}, in one dtype",
              name(x.dtype()), x.shape(), name(weight.dtype()), weight.shape(),
              out_in ? "a weight [outputs, inputs] takes an input of as many inputs"
                     : "a weight [inputs, outputs] takes an input of as many inputs");
  const std::int64_t k = x.shape()[-1];
  const std::int64_t n = weight.shape()[out_in ? 0 : 1];
  check_model(
      shapes_hold(!bias.defined() || (bias.shape() == Shape{n} && bias.dtype() == x.dtype()), "linear", {weight, bias}),
      "linear: bias {} {} for {} outputs; a bias is [outputs] in the dtype of the input",
      name(bias.defined() ? bias.dtype() : x.dtype()), bias.defined() ? to_string(bias.shape()) : "", n);
  const std::int64_t m = row_count(x);
  const Tensor none;
  autograd::Recording recording("linear", {x, weight, bias},
                                {weight.requires_grad() ? x : none, x.requires_grad() ? weight : none});
  const Tensor y =
      autograd::compute_or_recall(autograd::Producer::kMatrixProduct, [&] {
        const Tensor product = Tensor::empty(with_last(x.shape(), n), x.dtype());
        run_gemm("linear", {.m = m, .n = n, .k = k, .transpose_b = out_in}, x, weight, product, {.bias = bias});
        return std::vector{product};
      }).front();
  recording.finish(
      {y}, [m, n, k, out_in, x_shape = x.shape()](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
        const Tensor &x = saved[0], &w = saved[1], &dy = grads[0];
        Grads result(3);
        if (needs[0]) {
          result[0] = Tensor::empty(x_shape, dy.dtype());
          run_gemm("linear_dx", {.m = m, .n = k, .k = n, .transpose_b = !out_in}, dy, w, result[0],
                   {.add_to = autograd::add_gradient_to(0, result[0])});
        }
        if (needs[1]) result[1] = linear_dw(x, dy, out_in);
        if (needs[2]) result[2] = bias_gradient(dy);
        return result;
      });
  return y;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) { return linear_op(x, weight, bias, true); }
Tensor linear_kn(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_op(x, weight, bias, false);
}

namespace {

Tensor embedding_op(const Tensor& ids, const Tensor& table, std::int64_t padding, bool rounds_each_sum) {
  check_model(table.shape().ndim() == 2, "embedding: table {}; a table is [rows, dim]", table.shape());
  const std::int64_t vocab = table.shape()[0];
  const std::int64_t dim = table.shape()[1];
  std::vector<std::int64_t> sizes = ids.shape().sizes();
  sizes.push_back(dim);
  Tensor y = Tensor::empty(Shape(sizes), table.dtype());
  launch("embedding", pass_cost(0, {ids, y}, {y}), [&] {
    kernels::embedding_forward({table.dtype(), ids.numel(), vocab, dim, ids.dtype()}, ids.raw(), table.raw(), y.raw());
  });
  autograd::record(
      "embedding", {table}, {ids}, {y},
      [shape = table.shape(), padding, rounds_each_sum](Saved saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor &ids = saved[0], &dy = grads[0];
        Tensor dtable = Tensor::empty(shape, dy.dtype());
        launch("embedding_grad", pass_cost(static_cast<double>(dy.numel()), {ids, dy}, {dtable}), [&] {
          kernels::embedding_backward({dy.dtype(), ids.numel(), shape[0], shape[1], ids.dtype(), rounds_each_sum},
                                      ids.raw(), dy.raw(), dtable.raw());
          drop_padding_row(dtable, padding);
        });
        return {dtable};
      });
  return y;
}

}  // namespace

void drop_padding_row(const Tensor& gradient, std::int64_t padding, std::int64_t first) {
  const std::int64_t row = padding - first;
  if (padding < 0 || row < 0 || row >= gradient.shape()[0]) return;
  const Tensor dropped = gradient.rows(row, 1);
  std::memset(dropped.raw(), 0, static_cast<std::size_t>(dropped.nbytes()));
}

Tensor embedding(const Tensor& ids, const Tensor& table) { return embedding_op(ids, table, -1, false); }
Tensor composed::embedding(const Tensor& ids, const Tensor& table) { return embedding_op(ids, table, -1, true); }
Tensor embedding(const Tensor& ids, const Tensor& table, std::int64_t padding, bool composed) {
  return embedding_op(ids, table, padding, composed);
}

namespace {

struct Batched {
  std::int64_t batch = 0;
  kernels::Gemm op;
};

// c[i] = op(a[i]) . op(b[i]); the strides are whole matrices.
Tensor run_batched(std::string_view name, Batched product, const Tensor& a, const Tensor& b, const Shape& shape) {
  kernels::Gemm& op = product.op;
  op.ab = a.dtype();
  op.c = a.dtype();
  Tensor c = Tensor::empty(shape, a.dtype());
  launch(name, gemm_cost(op, product.batch, a, b, c), [&] {
    const kernels::BatchStride stride{op.m * op.k, op.k * op.n, op.m * op.n};
    kernels::gemm_batched(op, product.batch, stride, a.raw(), b.raw(), c.raw());
  });
  return c;
}

bool same_leading_dims(const Shape& a, const Shape& b) {
  if (a.ndim() != b.ndim() || a.ndim() < 2) return false;
  return std::equal(a.sizes().begin(), a.sizes().end() - 2, b.sizes().begin());
}

}  // namespace

// Letters: a [..., M, K], b [..., K, N] or [..., N, K], c [..., M, N].
Tensor bmm(const Tensor& a, const Tensor& b, bool transpose_b) {
  check_model(same_leading_dims(a.shape(), b.shape()) && a.shape()[-1] == b.shape()[transpose_b ? -1 : -2] &&
                  a.dtype() == b.dtype(),
              "bmm: {} {} with {} {}{}; [..., m, k] and [..., k, n] (transposed: [..., n, k]) with the same leading "
              "dims are needed, in one dtype",
              name(a.dtype()), a.shape(), name(b.dtype()), b.shape(), transpose_b ? " transposed" : "");
  const std::int64_t m = a.shape()[-2];
  const std::int64_t k = a.shape()[-1];
  const std::int64_t n = b.shape()[transpose_b ? -2 : -1];
  std::int64_t batch = 1;
  for (int d = 0; d < a.shape().ndim() - 2; ++d) batch *= a.shape()[d];
  Tensor c =
      run_batched("bmm", {batch, {.m = m, .n = n, .k = k, .transpose_b = transpose_b}}, a, b, with_last(a.shape(), n));
  const Tensor none;
  autograd::record(
      "bmm", {a, b}, {b.requires_grad() ? a : none, a.requires_grad() ? b : none}, {c},
      [=, a_shape = a.shape(), b_shape = b.shape()](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
        const Tensor &a = saved[0], &b = saved[1], &dc = grads[0];
        Grads result(2);
        if (needs[0]) {
          result[0] =
              run_batched("bmm_da", {batch, {.m = m, .n = k, .k = n, .transpose_b = !transpose_b}}, dc, b, a_shape);
        }
        if (!needs[1]) return result;
        if (transpose_b) {
          result[1] = run_batched("bmm_db", {batch, {.m = n, .n = k, .k = m, .transpose_a = true}}, dc, a, b_shape);
        } else {
          result[1] = run_batched("bmm_db", {batch, {.m = k, .n = n, .k = m, .transpose_a = true}}, a, dc, b_shape);
        }
        return result;
      });
  return c;
}

}  // namespace loom::ops
