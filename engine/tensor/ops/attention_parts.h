// Attention over keys that arrive in parts, and its backward: for operators with a backward of their own, such as ring
// attention. Nothing here is recorded.
//
// Letters   q [B,S_q,H,D]; k, v [B,S_k,G,D] of one part.
// Pieces    which queries see which keys of a part. Each query sees a key at least once, each pair in one piece.
// Rounding  results and gradients add up in fp32 (fp64 for fp64) and are rounded once, at the end.
// Order     bits depend on the order of the calls and of the pieces.
// Plan      runs dry.
#pragma once

#include <cstdint>
#include <span>

#include "engine/tensor/ops.h"

namespace loom::ops {

// Queries [q_begin, q_begin + q_count) of `rows` rows from `row` on see the keys [k_begin, k_begin + k_count) of the
// same rows: all of them, or, if causal, the i-th query those up to the i-th. More than one row only with all of the
// queries and all of the keys.
struct AttentionPiece {
  std::int64_t row = 0, rows = 1;
  std::int64_t q_begin = 0, q_count = 0;
  std::int64_t k_begin = 0, k_count = 0;
  bool causal = false;
};

class AttentionOverParts {
 public:
  AttentionOverParts(Tensor q, double scale);

  void add(const Tensor& k, const Tensor& v, std::span<const AttentionPiece> pieces);
  // After the last part; out is in q's dtype.
  AttentionResult finish();

 private:
  const Tensor q_;
  const double scale_;
  Tensor out_;
  Tensor log_sum_exp_;
};

class AttentionOverPartsBackward {
 public:
  AttentionOverPartsBackward(Tensor q, AttentionResult whole, Tensor dout, double scale);

  // Adds to dk and dv, fp32 (fp64 for fp64) in the shapes of k and v.
  void add(const Tensor& k, const Tensor& v, std::span<const AttentionPiece> pieces, const Tensor& dk,
           const Tensor& dv);
  // After the last part; in q's dtype.
  Tensor finish();

 private:
  const Tensor q_;
  const AttentionResult whole_;
  const Tensor dout_;
  const double scale_;
  Tensor dq_;
};

// Zeros in fp32 (fp64 for fp64) for sums of `dtype`; and such sums in `dtype`, rounded.
Tensor sums_like(const Shape& shape, DType dtype);
Tensor rounded_to(DType dtype, const Tensor& sums);

}  // namespace loom::ops
