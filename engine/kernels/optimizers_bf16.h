// adamw() and sgd() of weights and state in bf16. Private to engine/kernels.
//
// Rounding  to the bit as the fused optimizers of PyTorch's CPU kernels (fused=True), whose moments are sums by one
//           fused multiply-add: arithmetic in fp32, weight and state rounded once each.
#pragma once

#include "engine/kernels/fused.h"
#include "engine/kernels/momentum.h"

namespace loom::kernels {

void adamw_bf16(const AdamW& op, bf16* weight, const void* grad, bf16* m, bf16* v);
void sgd_bf16(const Sgd& op, bf16* weight, const void* grad, bf16* buffer);

}  // namespace loom::kernels
