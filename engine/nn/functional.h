// Functional forms that exist in two grains; the rank's KernelOptions choose. Shapes as in engine/tensor/ops.h.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::nn {

// Which operators run fused. A slot of the rank context; all on is the fast grain, all off the pytorch grain.
// Flags: --use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --use-flash-attn.
struct KernelOptions {
  bool fused_rmsnorm = true;
  bool fused_swiglu = true;
  bool fused_rotary_pos_emb = true;
  bool flash_attn = true;

  static KernelOptions fast() { return {}; }
  static KernelOptions pytorch() { return {false, false, false, false}; }
};

namespace functional {

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor swiglu(const Tensor& gate, const Tensor& up);
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin);
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal = true);

}  // namespace functional
}  // namespace loom::nn
