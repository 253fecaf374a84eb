// Attention over keys that arrive in parts: results of parts joined, gradients of parts added.
//
// Whole     out [batch, queries, heads, head_dim] and log-sum-exp [batch, heads, queries] in fp32 (fp64 for fp64), so
//           that each is rounded once, whatever the number of parts. Before the first part out is 0 and every
//           log-sum-exp is -infinity.
// Part      a box of the whole: `rows` of the batch from `row` on, `count` positions from `begin` on. Its tensors are
//           contiguous, of `dtype`; its log-sum-exp is fp32 (fp64).
// Threads   those of the rank; bits do not depend on their number.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace loom::kernels {

struct AttentionPart {
  DType dtype;
  std::int64_t positions;  // of the whole
  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t row, rows;
  std::int64_t begin, count;
};

// Joins the part's out and log-sum-exp into the whole's: with l = log(exp(l_whole) + exp(l_part)),
// out = exp(l_whole - l) out + exp(l_part - l) out_part. No difference is above 0: scores of any size are exact.
void join_attention_part(const AttentionPart& part, const void* part_out, const void* part_log_sum_exp, void* out,
                         void* log_sum_exp);
// The part's log-sum-exp [rows, heads, count] from the whole's.
void copy_log_sum_exp(const AttentionPart& part, const void* log_sum_exp, void* part_log_sum_exp);
// whole += part, of gradients [batch, positions, heads, head_dim].
void add_attention_part(const AttentionPart& part, const void* part_gradient, void* gradient);

}  // namespace loom::kernels
