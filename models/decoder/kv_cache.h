// KvCache: the keys and values of the tokens that a decoder has read, so that a call reads only new tokens.
//
//   models::KvCache cache(models::kv_cache_shape(config), 1, 64);
//   const autograd::NoGrad no_grad;
//   Tensor logits = model.call({{prompt}, {{"past_key_values", cache.to_value()}}});   // prompt [1,S]
//   logits = model.call({{next}, {{"past_key_values", cache.to_value()}}});            // next [1,1]
//
// Letters   B rows, C capacity, S tokens of a call, G key/value heads, D head dim, V vocab_size.
// Holds     for each layer keys and values [B,C,G,D]; row b has its first length(b) places filled. Rows have their own
//           lengths, and padding is never stored: a row does not depend on the rows beside it, unless the
//           rotary frequencies follow the longest row (rotary_scaling.h).
// Call      named arguments of the decoders (decoder.h) and of InternVL's text:
//           past_key_values  to_value(). The call appends its tokens to their rows.
//           attention_mask   int32 [B,S]: 1 for a token, 0 for padding before or behind the row's tokens; without it
//                            all are tokens. A row may have none. Logits at padding are undefined.
//           position_ids     without it, a token's position is the number of its row's tokens before it, plus the
//                            row's offset: 0, or what a model with pictures sets (models/qwen_vl).
//           logits_to_keep   1: logits [B,1,V] of each row's last token in this call; 0 or absent: all.
// Growth    a call whose tokens do not fit is a ModelError; reserve() makes room, at least twice the old capacity.
// dtype     of the keys: the parameters' or, under mixed precision, param_dtype (ModelError for another one).
// Memory    2 * layers * B * C * G * D elements on the device of the current rank (category activation).
// Sharded   every rank has a cache of its own and makes the same calls; the values hold no parameters.
// Threads   the rank's host thread; one call at a time. A call that throws does not change the lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/nn/value.h"
#include "models/decoder/decoder_config.h"

namespace loom::models {

struct KvCacheShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};
KvCacheShape kv_cache_shape(const DecoderConfig& config);

class KvCache {
 public:
  KvCache(const KvCacheShape& shape, std::int64_t batch, std::int64_t capacity, DType dtype = DType::kF32);

  nn::Value to_value() const;

  std::int64_t batch() const;
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length(std::int64_t row) const;
  std::int64_t nbytes() const;

  // Makes room for `tokens` in every row, if needed. Earlier values of to_value() refer to the old cache.
  void reserve(std::int64_t tokens);
  // Drops a row's tokens behind the first `length`. Precondition: it has that many.
  void truncate(std::int64_t row, std::int64_t length);
  // Row i becomes a copy of row rows[i]; there are rows.size() rows then.
  void select_rows(std::span<const std::int64_t> rows);

 private:
  // New tensors of `batch` rows and `capacity`; row i has the places of row from[i].
  void remake(std::span<const std::int64_t> from, std::int64_t capacity);

  KvCacheShape shape_;
  DType dtype_;
  std::int64_t capacity_;
  std::vector<Tensor> keys_, values_;  // by layer
  // int64 [B] of the host; shared with to_value(), written by calls.
  Tensor lengths_;
  Tensor offsets_;
};

}  // namespace loom::models
