// Decoders: causal language models as trees of modules with Hugging Face's parameter paths.
//
// Letters  B batch, S sequence, E hidden_size, V vocab_size, H/G query and key/value heads, D head_dim.
// Call     model(input_ids int32 or int64 [B,S], on the host or the device) -> logits [B,S,V].
// Trees    Qwen2, Llama   model.{embed_tokens, layers.N.{self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj, input_layernorm,
//                         post_attention_layernorm}, norm, rotary_emb}, lm_head
//          GPT-2          transformer.{wte, wpe, h.N.{ln_1, attn.{c_attn,c_proj}, ln_2, mlp.{c_fc,c_proj}}, ln_f}, lm_head
//          lm_head is tied to the embedding where the config says so. A layer is called with (hidden, cos, sin), GPT-2's with (hidden).
// Classes  type_name() is transformers' class: Qwen2ForCausalLM, Qwen2Model, Qwen2DecoderLayer, Qwen2Attention, Qwen2MLP, Qwen2RotaryEmbedding,
//          GPT2LMHeadModel, GPT2Model, GPT2Block, GPT2Attention, GPT2MLP; leaves are torch.nn's: Linear, Conv1D, Embedding, RMSNorm, LayerNorm.
// Grain    layers go through nn::functional: the rank's KernelOptions choose fused or composed operators at every call.
// Errors   a call with more than max_position_embeddings tokens raises ConfigError.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/nn/module.h"
#include "models/decoder_config.h"

namespace loom::models {

// Every parameter is on the meta device: nothing is allocated, no rank need be current.
std::shared_ptr<nn::Module> build_decoder(const DecoderConfig& config);

}  // namespace loom::models
