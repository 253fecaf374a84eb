// Tensors for tests: leaves, seeded values, what went into and came out of a function.
#pragma once

#include <functional>
#include <vector>

#include "engine/core/rng.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/tensor.h"
#include "tests/support/one_rank.h"

namespace loom::test {

using Doubles = std::vector<double>;

inline Tensor constant(const Doubles& values, const Shape& shape, DType dtype = DType::kF64) {
  return Tensor::from(values, shape, dtype);
}
inline Tensor constant(const Doubles& values) { return constant(values, {static_cast<std::int64_t>(values.size())}); }

// A leaf that requires grad.
inline Tensor leaf(const Doubles& values, const Shape& shape, DType dtype = DType::kF64) {
  return constant(values, shape, dtype).set_requires_grad(true);
}
inline Tensor leaf(const Doubles& values) { return leaf(values, {static_cast<std::int64_t>(values.size())}); }

// Standard normal values; `stream` tells tensors apart.
inline Doubles normals(std::int64_t count, std::uint64_t stream) {
  Doubles values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(normal_at(stream + 1, static_cast<std::uint64_t>(i)));
  return values;
}

inline Tensor ids(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

// Sum of all elements, as a recorded scalar.
inline Tensor sum(const Tensor& x) { return ops::scale(ops::mean(x), static_cast<double>(x.numel())); }

inline Doubles values(const Tensor& x) { return x.to_vector<double>(); }
inline Doubles grad(const Tensor& x) { return x.grad().to_vector<double>(); }

}  // namespace loom::test
