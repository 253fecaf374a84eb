// Flash-style attention with grouped-query heads; memory linear in the numbers of queries and keys.
//
// Letters   B batch, S_q queries, S_k keys, H query heads, G key/value heads (H % G == 0), D head dim.
// Shapes    q, out, dq, dout [B,S_q,H,D]; k, v, dk, dv [B,S_k,G,D]; log_sum_exp, dlog_sum_exp [B,H,S_q] (natural log of
//           the row's sum of exp(score * scale), maximum included). Query head h uses key/value head h / (H / G).
// Mask      key j has position j, query i has position start + i; a causal query sees the keys at its own position and
//           before. start >= 0, so every query sees a key.
// Segments  with segment_ends, a query sees keys of its own segment alone, and each segment has the bits that it has as
//           a batch of its own.
// dtypes    fp32, bf16, fp16, fp64; log_sum_exp and its gradient fp32 (fp64 for fp64); accumulation as these.
// Threads   tasks by shape alone: key/value heads of all samples and segments where they are many, the longest first,
//           else (head[, block of queries]); dk and dv of a key/value head are summed over its query heads in head
//           order, so bits depend neither on the thread count nor on the samples and segments beside.
// Errors    ModelError for another dtype; InvariantError for sizes that the operators should have refused.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/dtype.h"

namespace loom::kernels {

// Where segments of the positions end, counted over all rows of a batch: row b's position s is b * S + s. Ascending;
// every row ends a segment.
using SegmentEnds = std::shared_ptr<const std::vector<std::int64_t>>;

struct Attention {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1.0;  // usually 1 / sqrt(head_dim)
  bool causal = true;
  std::int64_t start = 0;  // position of the first query among the keys; read when causal
  DType dtype = DType::kF32;
  SegmentEnds segment_ends = {};  // null: each row is one; else causal, as many keys as queries, start 0
};

void attention_forward(const Attention& op, const void* q, const void* k, const void* v, void* out, void* log_sum_exp);

// The tensors of a backward. `out` and `log_sum_exp` may belong to an attention over more keys, of which k and v are a
// part: dk and dv then belong to the part, and the sum of dq over the parts is the whole dq (ring attention).
struct AttentionBackward {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* out = nullptr;
  const void* log_sum_exp = nullptr;
  const void* dout = nullptr;
  const void* dlog_sum_exp = nullptr;  // null: log_sum_exp has no gradient
  // Overwritten.
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};
void attention_backward(const Attention& op, const AttentionBackward& tensors);

}  // namespace loom::kernels
