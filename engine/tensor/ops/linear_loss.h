// Cross-entropy of a linear layer's outputs, without the outputs: the logits of `chunk` tokens of each row exist at a
// time. Fused linear cross-entropy kernels and MindSpeed's chunk loss compute the same.
//
// Forward    for one chunk after another: logits = x W^T in x's dtype, their cross-entropy, and at once the gradients
//            of x and W. Gradients that are not needed are left out, and all of them under NoGrad.
// Backward   multiplies both by the incoming gradient over the number of counted targets; no other arithmetic.
// Sums       dW is summed over chunks in fp32 (fp64 for fp64) and rounded once; a chunk's logit gradients are of the
//            sum, not the mean, so that they do not vanish in fp16.
// Memory     logits: chunk * rows * V elements; kept until backward: dx like x, dW like W, and dW in fp32 during
//            forward.
// Bits       as the unchunked loss, except for the order of sums in dW and the loss.
// Source     MindSpeed-MM, mindspeed_mm/fsdp/features/memory/chunkloss (which sums dW in W's dtype).
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "engine/tensor/tensor.h"

namespace loom::ops {

// x [..., S, H], weight [V, H], targets int32 or int64 [..., S] -> the mean over targets that are not `ignore_index`, 0
// where there are none, in fp32 (fp64 for fp64). chunk >= 1.
//
// Throws   ModelError for shapes and dtypes that do not fit, ConfigError for a target outside [0, V).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, std::int64_t chunk,
                            std::int64_t ignore_index = -100);

struct SumOfLosses {
  double sum = 0;
  std::int64_t counted = 0;  // targets
};
// The losses of logits [rows, V] against targets [rows]. With `gradient` the logits become the gradient of the sum.
using LogitsLoss = std::function<SumOfLosses(const Tensor& logits, const Tensor& targets, bool gradient)>;

// The same with another loss of a chunk's logits, for operators of several ranks. `name` is a literal.
Tensor linear_loss(std::string_view name, const Tensor& x, const Tensor& weight, const Tensor& targets,
                   std::int64_t chunk, const LogitsLoss& loss);

}  // namespace loom::ops
