// The decoders with RMSNorm, rotary positions, grouped key/value heads and SwiGLU: all families but GPT-2. Their
// differences (class names, biases, norms of q and k, experts) are in the config. Private to models.
//
// Call     model(input_ids int32 or int64 [B,S]), or instead with the named argument inputs_embeds [B,S,hidden_size],
//          which a multimodal model assembles from embed_tokens and other sources; position_ids,
//          actual_seq_len, past_key_values and its related arguments as in decoder.h. deepstack: a list of
//          [B,S,hidden_size] that are added to the results of the first layers (qwen_vl).
//          router_loss true: as in engine/nn/router_loss.h, without a cache.
// Stages   a stage of a pipeline (sharding/pipeline/pipeline_parts.h) has some of the layers; without norm its result
//          is the last hidden state, without lm_head that of the causal model too.
// Errors   ConfigError for neither or both of them, or for more positions than longest_sequence().
#pragma once

#include <optional>

#include "engine/nn/layers.h"
#include "models/decoder/cache_call.h"
#include "models/decoder/decoder_config.h"
#include "models/decoder/named_module.h"

namespace loom::models {

struct LayerResult;

// Qwen2Model, LlamaModel, ...: -> the last hidden state [B,S,hidden_size], normed.
class DecoderModel final : public NamedModule {
 public:
  explicit DecoderModel(const DecoderConfig& config);

  nn::Child<nn::Embedding> embed_tokens;  // of a stage that has it

 protected:
  nn::Value forward(const nn::Args& args) override;

 private:
  Tensor embeddings(const nn::Args& args);
  static nn::Value with_deepstack(std::size_t layer, const nn::Value& deepstack, nn::Value result);
  nn::Value run_plain(std::size_t layer, const nn::Args& args, const Tensor& hidden);
  nn::Value run_balanced(std::size_t layer, const nn::Args& args);
  nn::Value with_router_losses(const nn::Args& args, const LayerResult& result);
  bool adds_losses() const;
  nn::Value rotary_tables(const nn::Args& args, const Tensor& hidden, const std::optional<CacheCall>& cache);

  const DecoderConfig config_;
  nn::ModuleList& layers_;
  nn::Child<nn::Module> norm_;
  nn::Child<nn::Module> rotary_emb_;
};

// Qwen2ForCausalLM, LlamaForCausalLM, ...: -> logits [B,S,vocab_size].
class DecoderForCausalLM final : public NamedModule {
 public:
  explicit DecoderForCausalLM(const DecoderConfig& config);

 private:
  const DecoderConfig config_;

 public:
  DecoderModel& model;
  nn::Child<nn::Module> lm_head;

 protected:
  nn::Value forward(const nn::Args& args) override;
};

}  // namespace loom::models
