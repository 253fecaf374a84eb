// CacheCall: the effect of past_key_values, attention_mask and position_ids (kv_cache.h) on one call of a decoder.
// Private to models.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/nn/value.h"
#include "engine/tensor/ops/decoding.h"
#include "models/decoder/decoder_config.h"

namespace loom::models {

// The names of the parts of KvCache::to_value().
inline constexpr const char* kPastKeyValues = "past_key_values";

class CacheCall {
 public:
  // None without past_key_values. `input` is [B,S,...]. Throws ModelError for a cache of another model or batch, one
  // without room, and an invalid mask; ConfigError for a row that would exceed longest_sequence().
  static std::optional<CacheCall> of(const nn::Args& args, const Shape& input, const DecoderConfig& config);

  const Tensor& rows() const { return rows_; }
  // int32 [B,S]; 0 at padding.
  const Tensor& position_ids() const { return position_ids_; }
  // The cache argument of layer `layer`.
  nn::Value layer(std::size_t layer) const;
  // Extends the rows by this call's tokens. Once, when all layers have run.
  void finish() const;

 private:
  explicit CacheCall(const nn::Value& cache) : cache_(cache) {}

  nn::Value cache_;
  Tensor rows_;
  Tensor position_ids_;
};

// A layer's argument, as layer() made it; none without a cache.
std::optional<ops::CachePart> cache_part(const nn::Value& of_layer);

// The hidden states whose logits are requested: all, or the last of each row (logits_to_keep). Before the decoder runs,
// as it extends the cache's rows.
class KeptLogits {
 public:
  KeptLogits(const nn::Args& args, const Shape& input, const DecoderConfig& config);
  Tensor of(const Tensor& hidden) const;

 private:
  Tensor rows_;  // undefined: all
};

}  // namespace loom::models
