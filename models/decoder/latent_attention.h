// DeepSeek-V3's attention: multi-head latent attention (LatentAttentionConfig). Private to models.
//
// Letters  H heads, n qk_nope_head_dim, r qk_rope_head_dim, v v_head_dim, R kv_lora_rank, D = n + r.
// Paths    q_proj [H D, hidden], or q_a_proj, q_a_layernorm and q_b_proj; kv_a_proj_with_mqa [R + r, hidden],
//          kv_a_layernorm, kv_b_proj [H (n + v), R], o_proj [hidden, H v].
// Call     (hidden [B,S,hidden], cos, sin of r dims, ...) as other attentions of decoders.
// Values   are padded with zeros to D dims for the attention itself, as transformers does for flash attention. A cache
//          holds keys and values of all heads, not the vectors that they are projected from.
// Rotary   with rope_interleave the dims 2 i and 2 i + 1 are a pair; they are moved to i and r / 2 + i first, which
//          queries and keys share.
#pragma once

#include <memory>

#include "engine/nn/module.h"
#include "models/decoder/decoder_config.h"

namespace loom::models {

// Precondition: config.latent_attention.
std::shared_ptr<nn::Module> make_latent_attention(const DecoderConfig& config);

}  // namespace loom::models
