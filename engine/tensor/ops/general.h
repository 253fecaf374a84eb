// Operators for models of one's own: arithmetic with broadcasting, sums over a dim, dims joined, cut and swapped,
// dropout, attention with a mask, bags of embeddings. docs/operators.md lists these and the others.
//
// Broadcast  as PyTorch: dims are aligned at the last; a dim of size 1, or one that is missing, is repeated.
// Dims       negative ones count from the last.
// dtypes     operands share one, which the result has; arithmetic is in fp32 (fp64 for fp64) and rounded once.
// Copies     tensors are contiguous: transpose, concat and split copy.
// Plan       every operator has a cost and runs dry.
// Errors     as ops.h: ModelError with operator and shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"

namespace loom::ops {

// ops::add and ops::mul broadcast too.
Tensor sub(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor add_scalar(const Tensor& x, double value);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sigmoid(const Tensor& x);

// Sum of all elements: an fp32 (fp64) scalar, as mean().
Tensor sum(const Tensor& x);
// Over one dim, which goes, or stays with size 1. In x's dtype.
Tensor sum(const Tensor& x, int dim, bool keep_dim = false);
Tensor mean(const Tensor& x, int dim, bool keep_dim = false);

// Same dtypes and sizes but for `dim`. At least one tensor.
Tensor concat(const std::vector<Tensor>& parts, int dim);
// Parts of the given sizes along `dim`, whose sum they are.
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim);
Tensor transpose(const Tensor& x, int dim_a, int dim_b);

// Zeros each element with probability p and multiplies the others by 1 / (1 - p). x itself when `training` is false or
// p is 0. The draws come from the rank's RngState: a recomputed forward drops the same elements. Nothing is kept for
// backward, which draws again. 0 <= p < 1.
//
// In the forward of a micro-batch of R rows, an element's draw goes by its row and its place in the row:
//   [R, S, ...]   tokens are dim 1, where ranks share sequences: the place is in the whole row
//   [R * S, ...]  tokens of row after row, as above
//   [R, F], [R]   no tokens
// Other tensors, such as images of another number, are one part that goes by the number of the first row (and of the
// rank among those that share it): their draws depend on the micro-batch size.
//
// Ranks that have parts of a tensor drop what one rank would: `part` says which part x is. Tokens that ranks share by
// context parallelism are the forward's matter.
struct DropoutPart {
  int dim = 0;             // -1: features; 1: heads, in place of tokens, of [R, H, S, S]; 0: all of them
  std::int64_t begin = 0;  // x has the indices of `dim` from here on
  std::int64_t cut = 0;    // x has part `cut` of `cuts` equal parts of the rank's tokens
  std::int64_t cuts = 1;
};
Tensor dropout(const Tensor& x, double p, bool training = true, const DropoutPart& part = {});

// q [B,S_q,H,D]; k, v [B,S_k,G,D]; mask broadcasts to [B,H,S_q,S_k]: bool (true: the query sees the key) or floating,
// in q's dtype, added to the scaled scores. A query that sees no key gets the mean of all values. Scores are kept for
// backward: memory is quadratic in the sequence, unlike attention().
Tensor masked_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale);

// ids [N] (int32/int64), rows of `table` [V, dim]; bag b is ids [offsets[b], offsets[b + 1]), the last one to the end.
// offsets [bags], int64 host values, ascending from 0. An empty bag is 0.
enum class BagMode : std::uint8_t { kSum, kMean };
Tensor embedding_bag(const Tensor& ids, const std::vector<std::int64_t>& offsets, const Tensor& table, BagMode mode);

}  // namespace loom::ops

namespace loom {

// a + b, a - b, a * b, a / b with broadcasting; -a; with a number on either side.
inline Tensor operator+(const Tensor& a, const Tensor& b) { return ops::add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return ops::sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return ops::mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return ops::div(a, b); }
inline Tensor operator-(const Tensor& x) { return ops::neg(x); }
inline Tensor operator+(const Tensor& x, double value) { return ops::add_scalar(x, value); }
inline Tensor operator+(double value, const Tensor& x) { return ops::add_scalar(x, value); }
inline Tensor operator-(const Tensor& x, double value) { return ops::add_scalar(x, -value); }
inline Tensor operator-(double value, const Tensor& x) { return ops::add_scalar(ops::neg(x), value); }
inline Tensor operator*(const Tensor& x, double factor) { return ops::scale(x, factor); }
inline Tensor operator*(double factor, const Tensor& x) { return ops::scale(x, factor); }
inline Tensor operator/(const Tensor& x, double divisor) { return ops::scale(x, 1 / divisor); }

}  // namespace loom
