#include "engine/tensor/ops/moe.h"

#include <algorithm>
#include <cstring>

#include "engine/core/rounding.h"
#include "engine/core/shape_text.h"
#include "engine/kernels/gemm.h"
#include "engine/kernels/routing.h"
#include "engine/kernels/row_products.h"
#include "engine/tensor/ops/decoding.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

// An expert's rows.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

Range rows_of_expert(const Tensor& offsets, std::int64_t expert) {
  const std::int64_t* at = offsets.data<std::int64_t>() + expert;
  return {at[0], at[1] - at[0]};
}

std::int64_t expert_count(const Tensor& offsets) { return offsets.numel() - 1; }

// Experts with at least one of `rows` rows; in a dry run the experts of balanced routing.
std::int64_t used_experts(const Tensor& offsets, std::int64_t rows) {
  if (offsets.raw() == nullptr) return std::min(expert_count(offsets), rows);
  std::int64_t used = 0;
  for (std::int64_t e = 0; e < expert_count(offsets); ++e) used += rows_of_expert(offsets, e).count > 0;
  return used;
}

std::byte* row_at(const Tensor& x, std::int64_t row) {
  const std::int64_t row_bytes = x.shape().row_elems() * element_bytes(x.dtype());
  return static_cast<std::byte*>(x.raw()) + row * row_bytes;
}

// Rows behind those of the last expert are no token's.
void zero_rows_behind(const Tensor& y, const Tensor& offsets) {
  const std::int64_t used = offsets.data<std::int64_t>()[expert_count(offsets)];
  const std::int64_t bytes = y.shape().row_elems() * element_bytes(y.dtype());
  std::memset(row_at(y, used), 0, static_cast<std::size_t>((y.shape()[0] - used) * bytes));
}

double product_flops(const Tensor& x, std::int64_t n) { return 2.0 * static_cast<double>(x.numel() * n); }

// A matrix product for each of `used` experts, of as many rows each.
Cost product_cost(Cost cost, DType dtype, std::int64_t used) {
  cost.unit = device::Unit::kMatrix;
  cost.dtype = dtype;
  cost.batch = std::max<std::int64_t>(1, used);
  return cost;
}

// y of rows in expert order = their x times the expert's matrix, as it lies or transposed; experts not in use move
// nothing through memory.
void multiply_rows(std::string_view name, kernels::Gemm op, const Tensor& x, const Tensor& weight,
                   const Tensor& offsets, const Tensor& y) {
  op.ab = op.c = x.dtype();
  op.k = x.shape()[1];
  op.n = y.shape()[1];
  const std::int64_t used = used_experts(offsets, x.shape()[0]);
  Cost cost = product_cost(pass_cost(product_flops(x, op.n), {x}, {y}), x.dtype(), used);
  cost.read_bytes += used * (weight.nbytes() / std::max<std::int64_t>(1, weight.shape()[0]));
  cost.m = ceil_div(x.shape()[0], cost.batch);
  cost.n = op.n;
  cost.k = op.k;
  launch(name, cost, [&] {
    for (std::int64_t e = 0; e < expert_count(offsets); ++e) {
      const Range range = rows_of_expert(offsets, e);
      if (range.count == 0) continue;
      op.m = range.count;
      if (DecodingScope::is_current() && kernels::are_few_rows(op.m, op.ab)) {
        kernels::multiply_rows({.m = op.m, .n = op.n, .k = op.k, .transposed = op.transpose_b, .dtype = op.ab},
                               row_at(x, range.begin), row_at(weight, e), row_at(y, range.begin));
        continue;
      }
      kernels::gemm(op, row_at(x, range.begin), row_at(weight, e), row_at(y, range.begin));
    }
    zero_rows_behind(y, offsets);
  });
}

// The gradient of every expert's matrix [N, K]; zeros where it has no rows.
void weight_gradients(const Tensor& dy, const Tensor& x, const Tensor& offsets, const Tensor& dweight) {
  Cost cost = product_cost(pass_cost(product_flops(x, dy.shape()[1]), {dy, x}, {dweight}), x.dtype(),
                           used_experts(offsets, x.shape()[0]));
  cost.m = dy.shape()[1];
  cost.n = x.shape()[1];
  cost.k = ceil_div(x.shape()[0], cost.batch);
  launch("grouped_linear_dw", cost, [&] {
    for (std::int64_t e = 0; e < expert_count(offsets); ++e) {
      const Range range = rows_of_expert(offsets, e);
      const kernels::Gemm op{.m = dy.shape()[1],
                             .n = x.shape()[1],
                             .k = range.count,
                             .transpose_a = true,
                             .ab = x.dtype(),
                             .c = x.dtype()};
      kernels::gemm(op, row_at(dy, range.begin), row_at(x, range.begin), row_at(dweight, e));
    }
  });
}

void check_expert_rows(std::string_view op, const Tensor& x, const ExpertRows& rows) {
  check_model(x.shape().ndim() == 2 && x.shape()[0] == rows.row_slots.numel(),
              "{}: {} with {} rows in order of expert; [rows, dim] is needed", op, x.shape(), rows.row_slots.numel());
}

}  // namespace

ExpertRows sort_by_expert(const Tensor& experts, std::int64_t num_experts, const ExpertCapacity& capacity) {
  check_model(experts.shape().ndim() == 2 && experts.dtype() == DType::kI64 && num_experts >= 1,
              "sort_by_expert: {} {} among {} experts; choices are int64 [tokens, k], of at least one expert",
              name(experts.dtype()), experts.shape(), num_experts);
  const std::int64_t slots = experts.numel(), most = num_experts * capacity.tokens;
  const std::int64_t limited = capacity.tokens == 0 ? slots : capacity.padded ? most : std::min(slots, most);
  const std::int64_t count = capacity.rows > 0 ? capacity.rows : limited;
  const kernels::ExpertOrder op{experts.shape()[0], experts.shape()[1], num_experts, count,
                                capacity.padded ? capacity.tokens : 0};
  ExpertRows rows{Tensor::empty({num_experts + 1}, DType::kI64), Tensor::empty({count}, DType::kI64),
                  Tensor::empty(experts.shape(), DType::kI64)};
  launch("sort_by_expert", pass_cost(0, {experts}, {rows.offsets, rows.row_slots, rows.token_rows}), [&] {
    kernels::sort_by_expert(op, experts.data<std::int64_t>(), rows.offsets.data<std::int64_t>(),
                            rows.row_slots.data<std::int64_t>(), rows.token_rows.data<std::int64_t>());
  });
  return rows;
}

Tensor gather_tokens(const Tensor& x, const ExpertRows& rows) {
  const std::int64_t tokens = rows.token_rows.shape()[0], k = rows.token_rows.shape()[1];
  check_model(x.shape().ndim() == 2 && x.shape()[0] == tokens,
              "gather_tokens: {} for {} tokens; [tokens, dim] is needed", x.shape(), tokens);
  const kernels::TokenRows op{x.dtype(), tokens, k, rows.row_slots.numel(), x.shape()[1]};
  Tensor y = Tensor::empty({op.rows, op.dim}, x.dtype());
  launch("gather_tokens", pass_cost(0, {y, rows.row_slots}, {y}),
         [&] { kernels::gather_tokens(op, x.raw(), rows.row_slots.data<std::int64_t>(), y.raw()); });
  autograd::record(
      "gather_tokens", {x}, {rows.token_rows}, {y}, [op](Saved saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor &token_rows = saved[0], &dy = grads[0];
        Tensor dx = Tensor::empty({op.tokens, op.dim}, dy.dtype());
        launch("gather_tokens_grad", pass_cost(static_cast<double>(dy.numel()), {dy, token_rows}, {dx}),
               [&] { kernels::gather_tokens_backward(op, dy.raw(), token_rows.data<std::int64_t>(), dx.raw()); });
        return {dx};
      });
  return y;
}

Tensor grouped_linear(const Tensor& x, const Tensor& weight, const ExpertRows& rows) {
  check_expert_rows("grouped_linear", x, rows);
  check_model(weight.shape().ndim() == 3 && weight.shape()[0] == expert_count(rows.offsets) &&
                  weight.shape()[2] == x.shape()[1] && weight.dtype() == x.dtype(),
              "grouped_linear: input {} {} with weight {} {} of {} experts; a weight [experts, outputs, inputs] takes "
              "an input of as many inputs, in one dtype",
              name(x.dtype()), x.shape(), name(weight.dtype()), weight.shape(), expert_count(rows.offsets));
  Tensor y = Tensor::empty({x.shape()[0], weight.shape()[1]}, x.dtype());
  multiply_rows("grouped_linear", {.transpose_b = true}, x, weight, rows.offsets, y);
  const Tensor none;
  autograd::record(
      "grouped_linear", {x, weight},
      {weight.requires_grad() ? x : none, x.requires_grad() ? weight : none, rows.offsets}, {y},
      [x_shape = x.shape(), w_shape = weight.shape()](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
        const Tensor &x = saved[0], &weight = saved[1], &offsets = saved[2], &dy = grads[0];
        Grads result(2);
        if (needs[0]) {
          result[0] = Tensor::empty(x_shape, dy.dtype());
          multiply_rows("grouped_linear_dx", {}, dy, weight, offsets, result[0]);
        }
        if (needs[1]) {
          result[1] = Tensor::empty(w_shape, dy.dtype());
          weight_gradients(dy, x, offsets, result[1]);
        }
        return result;
      });
  return y;
}

Tensor combine_tokens(const Tensor& x, const Tensor& weights, const ExpertRows& rows) {
  check_expert_rows("combine_tokens", x, rows);
  check_model(weights.shape() == rows.token_rows.shape() && weights.dtype() == x.dtype(),
              "combine_tokens: {} {} with weights {} {}; weights are [tokens, k] in the dtype of the rows",
              name(x.dtype()), x.shape(), name(weights.dtype()), weights.shape());
  const kernels::TokenRows op{x.dtype(), weights.shape()[0], weights.shape()[1], x.shape()[0], x.shape()[1]};
  Tensor y = Tensor::empty({op.tokens, op.dim}, x.dtype());
  launch("combine_tokens", pass_cost(2.0 * static_cast<double>(x.numel()), {x, weights, rows.token_rows}, {y}), [&] {
    kernels::combine_tokens(op, x.raw(), weights.raw(), rows.row_slots.data<std::int64_t>(),
                            rows.token_rows.data<std::int64_t>(), y.raw());
  });
  const Tensor none;
  autograd::record(
      "combine_tokens", {x, weights},
      {weights.requires_grad() ? x : none, x.requires_grad() ? weights : none, rows.row_slots}, {y},
      [op](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
        const Tensor &x = saved[0], &weights = saved[1], &row_slots = saved[2], &dy = grads[0];
        Grads result(2);
        if (needs[0]) result[0] = Tensor::empty({op.rows, op.dim}, dy.dtype());
        if (needs[1]) result[1] = Tensor::empty({op.tokens, op.k}, dy.dtype());
        const Cost cost =
            pass_cost(3.0 * static_cast<double>(op.rows * op.dim), {x, weights, row_slots, dy}, {result[0], result[1]});
        launch("combine_tokens_grad", cost, [&] {
          kernels::combine_tokens_backward(op, raw_or_null(x), raw_or_null(weights), row_slots.data<std::int64_t>(),
                                           dy.raw(), raw_or_null(result[0]), raw_or_null(result[1]));
        });
        return result;
      });
  return y;
}

}  // namespace loom::ops
