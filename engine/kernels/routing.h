// Kernels of mixture-of-experts layers: choosing experts, ordering tokens by expert, moving rows there and back.
//
// Letters   T tokens, E experts, k experts a token; a slot t * k + j is choice j of token t; a row is a slot's place in
//           the order of experts, so there are T * k of either.
// dtypes    every tensor argument has `dtype` (fp32, bf16, fp16, fp64) unless noted otherwise; statistics
//           and arithmetic are fp32 (fp64 for fp64). Results are rounded once. Indices are int64.
// Threads   cut into tiles of tokens or rows by shape alone; sums over a token's rows run in ascending order of row.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace loom::kernels {

// The k largest of each row of probs [T, E] in statistics: choices [T, k], largest first; ties go to the lowest
// index. NaN counts as largest. Precondition: 1 <= k <= E.
void top_k(DType dtype, std::int64_t tokens, std::int64_t experts, std::int64_t k, const void* probs,
           std::int64_t* choices);

// weights [T, k] in `dtype`: the chosen probabilities (probs [T, E] in statistics), divided by their sum where
// `renormalize` is set. Backward writes dprobs [T, E] in statistics, 0 where not chosen.
struct RoutingWeights {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t k = 0;
  bool renormalize = false;
};
void routing_weights_forward(DType dtype, const RoutingWeights& op, const void* probs, const std::int64_t* choices,
                             void* weights);
void routing_weights_backward(DType dtype, const RoutingWeights& op, const void* probs, const std::int64_t* choices,
                              const void* dweights, void* dprobs);

// Slots in order of expert, inside an expert in order of slot. Rows of expert e are offsets[e] ... offsets[e + 1] - 1
// (offsets [E + 1]); row_slots [T * k] is each row's slot, token_rows [T, k] each token's rows, ascending. Throws
// ModelError for a choice outside [0, E).
void sort_by_expert(std::int64_t tokens, std::int64_t k, std::int64_t experts, const std::int64_t* choices,
                    std::int64_t* offsets, std::int64_t* row_slots, std::int64_t* token_rows);

// Tokens and their rows in order of expert.
struct TokenRows {
  DType dtype = DType::kF32;
  std::int64_t tokens = 0;
  std::int64_t k = 0;
  std::int64_t dim = 0;
};

// rows [T * k, dim]: row r is its token's row in x [T, dim]. Backward sums a token's rows.
void gather_tokens(const TokenRows& op, const void* x, const std::int64_t* row_slots, void* rows);
void gather_tokens_backward(const TokenRows& op, const void* drows, const std::int64_t* token_rows, void* dx);

// y [T, dim]: the sum of a token's rows [T * k, dim], each times its slot's weight [T, k]. Backward: drows or dweights
// may be null.
void combine_tokens(const TokenRows& op, const void* rows, const void* weights, const std::int64_t* row_slots,
                    const std::int64_t* token_rows, void* y);
void combine_tokens_backward(const TokenRows& op, const void* rows, const void* weights, const std::int64_t* row_slots,
                             const void* dy, void* drows, void* dweights);

}  // namespace loom::kernels
