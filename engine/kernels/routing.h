// Kernels of mixture-of-experts layers: choosing experts, ordering tokens by expert, moving rows there and back.
//
// Letters   T tokens, E experts, k experts a token; a slot t * k + j is choice j of token t; a row is a slot's place in
//           the order of experts. There are T * k slots, and as many rows unless experts have a capacity.
// None      -1 as an expert: the choice was dropped. -1 as a slot: the row is no token's, and is zero. -1 as a row: the
//           choice was dropped.
// dtypes    every tensor argument has `dtype` (fp32, bf16, fp16, fp64) unless noted otherwise; statistics
//           and arithmetic are fp32 (fp64 for fp64). Results are rounded once. Indices are int64.
// Threads   cut into tiles of tokens or rows by shape alone; sums over a token's rows run in ascending order of row.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace loom::kernels {

// The k largest of each row of scores [T, E] in statistics, to which `bias` [E] in statistics is added unless it is
// null: choices [T, k], largest first, ties go to the lowest index. NaN counts as largest. With groups above 1
// the experts are so many groups of neighbours; only those of the `best_groups` groups of largest score are chosen
// from, and a group's score is the sum of its `best_in_group` largest.
// Preconditions: groups divide E; best_in_group experts are in a group; k experts in best_groups groups.
struct ExpertChoice {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t k = 0;
  std::int64_t groups = 1;
  std::int64_t best_groups = 1;
  std::int64_t best_in_group = 1;
};
void choose_experts(DType dtype, const ExpertChoice& op, const void* scores, const void* bias, std::int64_t* choices);

// weights [T, k] in `dtype`: the chosen scores (scores [T, E] in statistics), as `norm` says, times `scale`. Backward
// writes dscores [T, E] in statistics, 0 where not chosen.
enum class WeightNorm : std::uint8_t {
  kNone,
  kSum,      // divided by their sum + 1e-20
  kSoftmax,  // their softmax
};
struct RoutingWeights {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t k = 0;
  WeightNorm norm = WeightNorm::kNone;
  double scale = 1;
};
void routing_weights_forward(DType dtype, const RoutingWeights& op, const void* scores, const std::int64_t* choices,
                             void* weights);
void routing_weights_backward(DType dtype, const RoutingWeights& op, const void* scores, const std::int64_t* choices,
                              const void* dweights, void* dscores);

// counts [E]: how often each expert is chosen by the tokens whose `counted` [T] is not 0; null: by all.
void count_choices(std::int64_t tokens, std::int64_t k, std::int64_t experts, const std::int64_t* choices,
                   const std::int32_t* counted, std::int64_t* counts);

// Drops the choices of an expert beyond its `capacity`: they become -1. By probability those of the largest weights
// [T, k] remain, of equal ones the first; otherwise the first in order of slot.
struct CapacityLimit {
  std::int64_t tokens = 0;
  std::int64_t k = 0;
  std::int64_t experts = 0;
  std::int64_t capacity = 0;
  bool by_probability = true;
};
void drop_beyond_capacity(DType dtype, const CapacityLimit& op, const std::int64_t* choices, const void* weights,
                          std::int64_t* kept);

// Slots in order of expert, inside an expert in order of slot. Rows of expert e are offsets[e] ... offsets[e + 1] - 1
// (offsets [E + 1]); row_slots [rows] is each row's slot, token_rows [T, k] each token's rows, ascending, then -1.
// `padded` above 0: every expert has so many rows, the last of which may be no token's. Throws ModelError for a choice
// that is neither -1 nor an expert. Precondition: the rows suffice, and with `padded` so do an expert's.
struct ExpertOrder {
  std::int64_t tokens = 0;
  std::int64_t k = 0;
  std::int64_t experts = 0;
  std::int64_t rows = 0;
  std::int64_t padded = 0;
};
void sort_by_expert(const ExpertOrder& op, const std::int64_t* choices, std::int64_t* offsets, std::int64_t* row_slots,
                    std::int64_t* token_rows);

// Tokens and their rows in order of expert.
struct TokenRows {
  DType dtype = DType::kF32;
  std::int64_t tokens = 0;
  std::int64_t k = 0;
  std::int64_t rows = 0;
  std::int64_t dim = 0;
};

// rows [rows, dim]: row r is its token's row in x [T, dim]. Backward sums a token's rows.
void gather_tokens(const TokenRows& op, const void* x, const std::int64_t* row_slots, void* rows);
void gather_tokens_backward(const TokenRows& op, const void* drows, const std::int64_t* token_rows, void* dx);

// y [T, dim]: the sum of a token's rows [rows, dim], each times its slot's weight [T, k]. Backward: drows or dweights
// may be null.
void combine_tokens(const TokenRows& op, const void* rows, const void* weights, const std::int64_t* row_slots,
                    const std::int64_t* token_rows, void* y);
void combine_tokens_backward(const TokenRows& op, const void* rows, const void* weights, const std::int64_t* row_slots,
                             const void* dy, void* drows, void* dweights);

}  // namespace loom::kernels
