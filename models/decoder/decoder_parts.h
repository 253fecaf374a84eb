// Common parts of the decoder families. Private to models.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder_config.h"

namespace loom::models {

// transformers' name of a family's class: "Qwen2" + part.
std::string class_name(const DecoderConfig& config, std::string_view part);

// S of a model's input of `dims` dims: ids [B,S] or embeddings [B,S,hidden]. Throws ConfigError when it exceeds
// longest_sequence().
std::int64_t check_length(const Shape& input, int dims, const DecoderConfig& config);

// [B,S,heads * D] -> [B,S,heads,D], and back.
Tensor split_heads(const Tensor& x, std::int64_t heads);
Tensor join_heads(const Tensor& x);

// The ends of segments in actual_seq_len (decoder.h): whole numbers; null for none. ModelError for others.
ops::SegmentEnds segment_ends(const nn::Value& actual_seq_len);
// Argument i of a layer, or none.
const nn::Value& optional_argument(const nn::Args& args, std::size_t i);
// A layer's arguments after its tensors, if the model has them: actual_seq_len, and its part of the cache.
struct LayerOptions {
  const nn::Value& actual_seq_len;
  nn::Value cache;

  // From the arguments i and i + 1 of the running layer.
  static LayerOptions of(const nn::Args& args, std::size_t i) {
    return {optional_argument(args, i), optional_argument(args, i + 1)};
  }
};
// Calls a layer with them.
template <class... T>
nn::Value result_of_layer(nn::Module& layer, const LayerOptions& options, T&&... arguments) {
  if (!options.cache.is_none()) return layer(std::forward<T>(arguments)..., options.actual_seq_len, options.cache);
  if (options.actual_seq_len.is_none()) return layer(std::forward<T>(arguments)...);
  return layer(std::forward<T>(arguments)..., options.actual_seq_len);
}
template <class... T>
Tensor run_layer(nn::Module& layer, const LayerOptions& options, T&&... arguments) {
  return result_of_layer(layer, options, std::forward<T>(arguments)...).tensor();
}

// The result of a layer or its MLP: hidden states, or a list of these, the loads of its router and its z-loss (moe.h).
struct LayerResult {
  Tensor hidden;
  Tensor loads = {};  // undefined: there are none, and no z
  Tensor z = {};      // undefined: there is none

  static LayerResult of(const nn::Value& value) {
    if (value.is_tensor()) return {value.tensor()};
    const auto& list = value.list();
    return {list[0], list[1], list.size() > 2 ? Tensor(list[2]) : Tensor{}};
  }
  nn::Value value() const {
    if (!loads.defined()) return hidden;
    return z.defined() ? std::vector<Tensor>{hidden, loads, z} : std::vector<Tensor>{hidden, loads};
  }
};

// Declares the other arguments of a decoder, a layer or its attention that follow the batch's rows (nn::BatchRows):
// tables of position_ids, and actual_seq_len, whose ends count from the first row that is kept.
void attach_batch_rows(nn::Module& module);

// Declares that a decoder, or an attention with these heads, works on part of a sequence (context parallelism).
void attach_context(nn::Module& module, std::int64_t heads = 0, std::int64_t kv_heads = 0, std::int64_t head_dim = 0);

// Declares that a decoder can share matrices (tensor parallelism), and of a causal model the plan.
void attach_tensor(nn::Module& module);
void attach_tensor_plan(nn::Module& causal_model, const DecoderConfig& config);

// 1 / sqrt(D); DeepSeek-V3: that times the square of 0.1 mscale_all_dim log(factor) + 1.
double attention_scale(const DecoderConfig& config);

// The core of a layer's attention, with the layer's arguments (hidden, cos, sin, actual_seq_len, part of a cache).
Tensor attend(const nn::Module& attention, const std::vector<Tensor>& qkv, double scale, const nn::Args& args);

// The output projection without bias: its own, or the embedding's.
std::shared_ptr<nn::Module> make_lm_head(const DecoderConfig& config, const nn::ParamSlot& embedding);

// The result of a causal model: logits of `hidden`, or with the named arguments targets [B,S] and loss_chunk_size their
// mean cross-entropy (ops::linear_cross_entropy).
nn::Value logits_or_loss(nn::Module& lm_head, const nn::Args& args, const Tensor& hidden);

// An MLP with a gate, of `intermediate_size`: a layer's, or the expert of every token (moe.h).
std::shared_ptr<nn::Module> make_gated_mlp(const DecoderConfig& config, std::int64_t intermediate_size);

// The families' causal models.
std::shared_ptr<nn::Module> make_rotary_decoder(const DecoderConfig& config);  // all but GPT-2
std::shared_ptr<nn::Module> make_gpt2(const DecoderConfig& config);

}  // namespace loom::models
