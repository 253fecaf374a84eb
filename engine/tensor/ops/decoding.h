// Operators for decoding token by token: attention with a cache, and products of few rows.
//
// Letters  as in engine/tensor/ops.h; C is the capacity of a cache.
// Errors   ModelError for shapes and dtypes that do not fit, and where an input needs a gradient: none of this is
//          recorded.
// Threads  the rank's host thread.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::ops {

// While one lives, linear layers and experts on at most 16 rows read their weights once, on all threads of the rank
// (kernels/row_products.h). The bits of a row do not depend on the rows beside it; they are not those outside the
// scope, which training keeps. Scopes nest.
class DecodingScope {
 public:
  DecodingScope();
  ~DecodingScope();
  DecodingScope(const DecodingScope&) = delete;
  DecodingScope& operator=(const DecodingScope&) = delete;

  static bool is_current();

 private:
  const bool before_;
};

// The cache of one layer, and the rows that a call adds to it.
struct CachePart {
  Tensor keys, values;  // [B,C,G,D]; written in place
  Tensor rows;          // int64 [B,3] of the host: first, count, length (kernels/cached_attention.h)
};

// q [B,S,H,D]; k, v [B,S,G,D] -> [B,S,H,D]. Puts the new tokens' keys and values into the cache; token i of a row sees
// the row's tokens there up to itself. Zeros at padding.
Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const CachePart& cache);

// x [B,S,N] -> [B,1,N]: the last new token of each row; the first position of a row without new tokens.
Tensor last_new_tokens(const Tensor& x, const Tensor& rows);

}  // namespace loom::ops
