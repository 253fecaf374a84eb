// Shared pieces of the operators' bodies. Private to engine/tensor.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/tensor.h"

namespace loom::ops {

using autograd::Grads;
using autograd::Needs;
using autograd::Saved;
using device::Cost;

// dtype of statistics and scalars: fp32, fp64 for fp64.
inline DType accumulation_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

inline Shape with_last(const Shape& shape, std::int64_t last) {
  Shape result = shape;
  result[-1] = last;
  return result;
}

// Rows of a tensor seen as [rows, last dim].
inline std::int64_t row_count(const Tensor& x) { return x.shape()[-1] == 0 ? 0 : x.numel() / x.shape()[-1]; }

// `holds`; when it is false, the guards of the inputs run first: a tensor that may not be read here (a sharded
// parameter) raises its own error, instead of one about its shape.
inline bool shapes_hold(bool holds, std::string_view op, std::initializer_list<Tensor> inputs) {
  if (!holds) autograd::check_inputs(op, {inputs.begin(), inputs.size()});
  return holds;
}

inline void check_same(std::string_view op, const Tensor& a, const Tensor& b) {
  check_model(shapes_hold(a.shape() == b.shape() && a.dtype() == b.dtype(), op, {a, b}),
              "{}: {} {} with {} {}; both need one shape and one dtype", op, name(a.dtype()), to_string(a.shape()),
              name(b.dtype()), to_string(b.shape()));
}

// One number for each element of x's last dim, in x's dtype.
void check_vector(std::string_view op, const Tensor& x, const Tensor& v);
// Shapes of the operators that exist fused and composed.
void check_rope(const Tensor& x, const Tensor& cos, const Tensor& sin);
// The position of the first query: `start`, or that which makes the queries the last positions; 0 when not causal.
std::int64_t check_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                             std::optional<std::int64_t> start);
// Ends as segment_attention() takes them.
void check_segments(const Tensor& q, const Tensor& k, const std::vector<std::int64_t>& ends);
void check_targets(std::string_view op, const Tensor& logits, const Tensor& targets);

// Cost of a pass that reads and writes these tensors once.
inline Cost pass_cost(double flops, std::initializer_list<Tensor> read, std::initializer_list<Tensor> written) {
  Cost cost{flops, 0, 0, 0};
  for (const Tensor& t : read) cost.read_bytes += t.defined() ? t.nbytes() : 0;
  for (const Tensor& t : written) cost.written_bytes += t.defined() ? t.nbytes() : 0;
  return cost;
}

// b's sizes are the last ones of a's: b is broadcast over the leading dims.
bool is_suffix(const Shape& suffix, const Shape& shape);
// Sum over the leading dims that `shape` does not have; `grad` itself when it has none more.
Tensor sum_to(const Tensor& grad, const Shape& shape);

// The values of a tensor as a kernel reads its arguments: unlike item() and to_vector(), no wait of the host. Zeros in
// a dry run.
std::vector<double> kernel_values(const Tensor& x);
inline double kernel_value(const Tensor& x) { return kernel_values(x).front(); }

inline void* raw_or_null(const Tensor& x) { return x.defined() ? x.raw() : nullptr; }

template <class F>
void launch(std::string_view kernel, const Cost& cost, F&& run) {
  device::Device::current().launch(kernel, cost, std::forward<F>(run));
}

}  // namespace loom::ops
