// Operators of mixture-of-experts layers after the router (routing.h): tokens ordered by expert, one matrix product an
// expert, and the way back.
//
// Letters  T tokens, E experts, k experts a token, H and N row lengths; R rows: T * k, one for each token and expert it
//          goes to, unless experts have a capacity.
// Work     tokens are gathered by expert, and an expert's product runs over its own tokens only: no expert computes a
//          token that did not choose it. An expert without tokens does nothing and has a gradient of zeros.
// Bits     sums over a token's experts run in order of expert in fp32 (fp64) and are rounded once; nothing depends on
//          the number of threads. Transformers' eager loop has the same order and, in 16-bit dtypes, rounds every term.
// Dry run  there are no tokens to count: shapes do not need them, and costs assume balanced routing, which uses every
//          expert as far as R suffices.
// Places   as in ops.h, and so are dtypes and errors; indices are int64 on the device.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::ops {

// The order of rows: by expert, inside an expert by token. Rows behind those of the last expert are zero, and so are
// the rows of padding.
struct ExpertRows {
  Tensor offsets;     // [E + 1]: expert e has rows offsets[e] ... offsets[e + 1] - 1
  Tensor row_slots;   // [R]: t * k + j where the row is choice j of token t; -1 where it is no token's
  Tensor token_rows;  // [T, k]: each token's rows, ascending; then -1 for each choice that was dropped
};
// The most tokens of an expert; drop_beyond_capacity() drops the others (routing.h).
struct ExpertCapacity {
  std::int64_t tokens = 0;  // 0: there is no limit
  bool padded = false;      // every expert has that many rows
  std::int64_t rows = 0;    // above 0: R, at least the choices that were not dropped
};
// R is T * k without a capacity; with one at most E * capacity, and exactly that where it is padded; or `rows`. Throws
// ModelError for an expert outside [0, num_experts) that is not -1, a dropped choice.
ExpertRows sort_by_expert(const Tensor& experts, std::int64_t num_experts, const ExpertCapacity& capacity = {});

// x [T, H] -> [R, H].
Tensor gather_tokens(const Tensor& x, const ExpertRows& rows);
// x [R, H], weight [E, N, H] -> [R, N]: the rows of expert e times weight[e]^T.
Tensor grouped_linear(const Tensor& x, const Tensor& weight, const ExpertRows& rows);
// x [R, H], weights [T, k] -> [T, H]: the sum of a token's rows, each times its weight.
Tensor combine_tokens(const Tensor& x, const Tensor& weights, const ExpertRows& rows);

}  // namespace loom::ops
