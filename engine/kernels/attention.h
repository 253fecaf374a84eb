// Causal flash-style attention with grouped-query heads; memory linear in the sequence length.
//
// Letters   B batch, S sequence, H query heads, G key/value heads (H % G == 0), D head dim.
// Shapes    q, out, dq, dout [B,S,H,D]; k, v, dk, dv [B,S,G,D]; log_sum_exp fp32 [B,H,S] (natural log of the row's sum
//           of exp(score * scale), maximum included). Query head h uses key/value head h / (H / G).
// dtypes    fp32, bf16, fp16, fp64 (log_sum_exp stays fp32, fp64 for fp64); accumulation in fp32 (fp64 for fp64).
// Threads   tiles over (batch, head[, row block]); dk and dv of a key/value head are summed over its query heads in
//           head order, so bits do not depend on the thread count.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace loom::kernels {

struct Attention {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1.0;  // usually 1 / sqrt(head_dim)
  bool causal = true;
  DType dtype = DType::kF32;
};

void attention_forward(const Attention& op, const void* q, const void* k, const void* v, void* out, void* log_sum_exp);

// Overwrites dq, dk, dv.
void attention_backward(const Attention& op, const void* q, const void* k, const void* v, const void* out,
                        const void* log_sum_exp, const void* dout, void* dq, void* dk, void* dv);

}  // namespace loom::kernels
