// Decoders: causal language models as trees of modules with Hugging Face's parameter paths.
//
// Letters  B batch, S sequence, V vocab_size.
// Call     model(input_ids int32 or int64 [B,S], on the host or the device) -> logits [B,S,V]. Named arguments:
//          position_ids     int32 [B,S], each below S; without it the positions of a row are 0, 1, ..., S - 1
//          actual_seq_len   a list of whole numbers: where segments end, counted over all rows (row b's position s is
//                           b * S + s); ascending, every row ends one. A token attends to its own segment alone.
//          past_key_values  a cache: only new tokens are read; attention_mask and logits_to_keep go with it
//                           (kv_cache.h)
// Paths    all but GPT-2: model.embed_tokens, model.layers.N.self_attn.{q,k,v,o}_proj,
//          model.layers.N.mlp.{gate,up,down}_proj, model.layers.N.{input_layernorm, post_attention_layernorm},
//          model.norm, model.rotary_emb, lm_head. A layer is called with (hidden, cos, sin), then
//          actual_seq_len if given; with a cache, its part of it comes after that.
//          Qwen3 and Qwen3-MoE: model.layers.N.self_attn.{q,k}_norm too.
//          Qwen3-MoE, Qwen2-MoE, Mixtral: in layers with experts the MLP is model.layers.N.mlp.{gate, experts}, with
//          the parameters gate.weight, experts.gate_up_proj and experts.down_proj of all experts; Qwen2-MoE has
//          {shared_expert, shared_expert_gate} too (moe.h).
//          DeepSeek-V3: attention as in latent_attention.h; in layers with experts mlp.{gate, experts, shared_experts}.
//          GPT-2: transformer.{wte, wpe}, transformer.h.N.{ln_1, attn.{c_attn, c_proj}, ln_2, mlp.{c_fc, c_proj}},
//          transformer.ln_f, lm_head. A layer is called with (hidden), then the same arguments.
// Ties     lm_head holds the embedding's parameter if tie_word_embeddings is true.
// Classes  type_name() is the class of transformers (Qwen2ForCausalLM, Qwen2Model, Qwen2DecoderLayer, Qwen2Attention,
//          Qwen2MLP, Qwen2RotaryEmbedding, ...; Qwen3MoeSparseMoeBlock, Qwen3MoeTopKRouter, Qwen3MoeExperts;
//          GPT2LMHeadModel, GPT2Model, GPT2Block, GPT2Attention, GPT2MLP); the leaves are Linear, Conv1D, Embedding,
//          RMSNorm, LayerNorm.
// Grain    layers go through nn::functional: the rank's KernelOptions choose fused or composed operators at every call.
// Dropout  of GPT-2, while the model trains (Module::training()).
// Errors   a call with more tokens than longest_sequence() raises ConfigError.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/nn/module.h"
#include "models/decoder/decoder_config.h"

namespace loom::models {

// Every parameter is on the meta device: nothing is allocated, and no rank need be current.
std::shared_ptr<nn::Module> build_decoder(const DecoderConfig& config);

}  // namespace loom::models
