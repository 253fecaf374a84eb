// Updates of optimizers with one momentum buffer: one pass over memory each.
//
// dtypes    weight, buffer: `dtype`, fp32 or fp64, of SGD also bf16; gradient: `grad_dtype`, any floating one;
//           updates: `update_dtype`, bf16 or fp32 beside fp32, fp64 beside fp64. Arithmetic in `dtype`, beside bf16 in
//           fp32, rounded once.
// Threads   cut into tiles by length alone: bits do not depend on the number of threads.
// Errors    ModelError for other dtypes.
// Source    torch/optim/sgd.py, torch/optim/_muon.py.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace loom::kernels {

// torch.optim.SGD: d = grad + weight_decay * weight; buffer = first ? d : momentum * buffer + (1 - dampening) * d;
// weight -= lr * (nesterov ? d + momentum * buffer : buffer). With momentum 0 the buffer is null, and d is the step.
struct Sgd {
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  std::int64_t elems = 0;
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;
};
void sgd(const Sgd& op, void* weight, const void* grad, void* buffer);

// torch.optim.Muon before orthogonalization: buffer += (1 - momentum) * (grad - buffer);
// update = nesterov ? grad + momentum * (buffer - grad) : buffer, rounded once to `update_dtype`.
struct MuonMomentum {
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  DType update_dtype = DType::kBF16;
  std::int64_t elems = 0;
  double momentum = 0;
  bool nesterov = true;
};
void muon_momentum(const MuonMomentum& op, const void* grad, void* buffer, void* update);

// And after it: weight = (1 - lr * weight_decay) * weight - step * update.
struct MuonUpdate {
  DType dtype = DType::kF32;
  DType update_dtype = DType::kBF16;
  std::int64_t elems = 0;
  double lr = 0;
  double weight_decay = 0;
  double step = 0;  // lr and the scale of the matrix's shape
};
void muon_update(const MuonUpdate& op, const void* update, void* weight);

// out = a * x + b * y, each element rounded once; x, y and out of one dtype, fp32 for y also beside 16-bit x. out may
// be x.
struct WeightedSum {
  DType dtype = DType::kF32;    // of x and out
  DType y_dtype = DType::kF32;  // x's, or fp32
  std::int64_t elems = 0;
  double a = 0;
  double b = 0;
};
void weighted_sum(const WeightedSum& op, const void* x, const void* y, void* out);

}  // namespace loom::kernels
