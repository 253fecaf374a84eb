// Attention with a cache of keys and values: new tokens are appended to a row's tokens, and see that row only.
//
// Letters  B rows, S tokens a row in this call, C capacity of the cache, H query heads, G key/value heads (H % G == 0),
//          D head dim.
// Shapes   q, out [B,S,H,D]; k, v [B,S,G,D]; keys, values [B,C,G,D]. Query head h uses key/value head h / (H / G).
// Rows     in row b the tokens [first, first + count) are new, the others padding; the cache has `length` tokens. New
//          token i goes to place length + i and sees the places up to its own. out is zero at padding.
// dtypes   fp32, bf16, fp16, fp64, one for all; sums in fp32 (fp64).
// Bits     of a row do not depend on the other rows, on padding, or on the number of threads.
// Threads  tasks over rows, tokens and runs of keys.
// Errors   InvariantError for rows that do not fit.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/dtype.h"

namespace loom::kernels {

struct CacheRow {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t length = 0;
};

struct CachedAttention {
  std::int64_t tokens = 0;    // S
  std::int64_t capacity = 0;  // C
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1.0;
  DType dtype = DType::kF32;
  std::span<const CacheRow> rows{};  // B
};

// Copies the new tokens' keys (or values) to their places.
void append_to_cache(const CachedAttention& op, const void* k, void* keys);
// `keys` and `values` hold the new tokens already.
void cached_attention(const CachedAttention& op, const void* q, const void* keys, const void* values, void* out);

}  // namespace loom::kernels
