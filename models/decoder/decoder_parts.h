// What the decoder families share. Private to models.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/nn/module.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder_config.h"

namespace loom::models {

// transformers' name of a family's class: "Qwen2" + part.
std::string class_name(const DecoderConfig& config, std::string_view part);

// S of a model's input of `dims` dims: ids [B,S] or embeddings [B,S,hidden]. Throws ConfigError when it exceeds
// max_position_embeddings.
std::int64_t check_length(const Shape& input, int dims, const DecoderConfig& config);

// [B,S,heads * D] -> [B,S,heads,D], and back.
Tensor split_heads(const Tensor& x, std::int64_t heads);
Tensor join_heads(const Tensor& x);

// The ends of segments that actual_seq_len gives (decoder.h): whole numbers; null for none. ModelError for others.
ops::SegmentEnds segment_ends(const nn::Value& actual_seq_len);
// Calls a layer, with actual_seq_len as last argument where there is one.
template <class... T>
Tensor run_layer(nn::Module& layer, const nn::Value& actual_seq_len, T&&... arguments) {
  if (actual_seq_len.is_none()) return layer(std::forward<T>(arguments)...).tensor();
  return layer(std::forward<T>(arguments)..., actual_seq_len).tensor();
}
// Argument i of a layer: actual_seq_len, or none.
const nn::Value& optional_argument(const nn::Args& args, std::size_t i);

// 1 / sqrt(D).
double attention_scale(const DecoderConfig& config);

// The output projection without bias: its own, or the embedding's.
std::shared_ptr<nn::Module> make_lm_head(const DecoderConfig& config, const nn::ParamSlot& embedding);

// The families' causal models.
std::shared_ptr<nn::Module> make_rotary_decoder(const DecoderConfig& config);  // all but GPT-2
std::shared_ptr<nn::Module> make_gpt2(const DecoderConfig& config);

}  // namespace loom::models
