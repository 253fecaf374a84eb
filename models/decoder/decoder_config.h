// DecoderConfig: the shape of a decoder-only language model, from Hugging Face's config.json or a models YAML.
//
// Sources  config.json as transformers 4 and 5 write it (rotary base and scaling as `rope_theta` and `rope_scaling`, or
//          inside `rope_parameters`), or a YAML with the same keys. Keys of config.json that do not change the model's
//          arithmetic are ignored; in YAML every unknown key is an error.
// Names    fields have the names in Llama's config.json, for GPT-2 too: hidden_size is its n_embd, and so on.
// Errors   ConfigError with file (in YAML line and column), key and value: a missing key, sizes that do not fit
//          together, and everything that would change the arithmetic and is not built (dropout outside GPT-2, sliding
//          windows, quantised weights, other activations).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/rotary_scaling.h"

namespace loom::models {

enum class DecoderFamily : std::uint8_t {
  kQwen2,
  kLlama,
  kQwen3,
  kQwen3Moe,
  kQwen2Moe,
  kMixtral,
  kDeepseekV3,
  kGpt2,
  // The text models of Qwen-VL (models/qwen_vl).
  kQwen2Vl,
  kQwen2_5Vl,
  kQwen3Vl
};
// model_type in config.json: "qwen2", "llama", "qwen3", "qwen3_moe", "qwen2_moe", "mixtral", "deepseek_v3",
// "gpt2".
std::string_view model_type(DecoderFamily family);
// The causal model's class in transformers: "Qwen2ForCausalLM", "LlamaForCausalLM", "GPT2LMHeadModel". Empty for a
// family that is only part of another model.
std::string_view architecture(DecoderFamily family);

// Mixture of experts: in sparse layers the MLP is a router and `num_experts` small MLPs; every token uses the
// `num_experts_per_tok` with the largest routing probabilities.
struct MoeConfig {
  std::int64_t num_experts = 0;  // also read as num_local_experts
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;       // of one expert; Mixtral: intermediate_size
  bool norm_topk_prob = false;                  // a token's routing weights sum to 1
  std::int64_t decoder_sparse_step = 1;         // layers step - 1, 2 step - 1, ... are sparse,
  std::vector<std::int64_t> mlp_only_layers{};  // except these
  // Every token also goes through one MLP of this size; 0: there is none. Qwen2-MoE weights it by a sigmoid.
  std::int64_t shared_expert_intermediate_size = 0;
  // DeepSeek-V3: scores are sigmoids, a bias that is no parameter corrects the choice, and a token's experts are in the
  // `topk_group` best of `n_group` groups (ops::RouterOptions).
  bool sigmoid_router = false;
  std::int64_t n_shared_experts = 0;
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  double routed_scaling_factor = 1;
  std::int64_t first_k_dense_replace = 0;  // the first layers are dense
  // The loss of a step is the cross-entropy + the coefficient times the routers' load-balancing loss, if
  // output_router_logits is true (engine/nn/router_loss.h).
  double router_aux_loss_coef = 0.001;
  bool output_router_logits = false;

  bool has_router_loss() const { return output_router_logits && router_aux_loss_coef != 0; }
  bool operator==(const MoeConfig&) const = default;
};

// Multi-head latent attention: keys and values of all heads are projected from one vector of kv_lora_rank a token, and
// rotary positions turn `qk_rope_head_dim` dims of each query and of one key that all heads share.
struct LatentAttentionConfig {
  std::int64_t q_lora_rank = 0;  // 0: queries are projected from the hidden states
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
  bool rope_interleave = true;  // pairs of the rotation are neighbours in the weights' order

  bool operator==(const LatentAttentionConfig&) const = default;
};

struct DecoderConfig {
  DecoderFamily family = DecoderFamily::kQwen2;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // GPT-2: n_inner, 4 * hidden_size when absent
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  // divides num_attention_heads
  // hidden_size / num_attention_heads when absent; Qwen3: 128; DeepSeek-V3: of queries and keys
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;  // longest sequence, unless scaling extends it (longest_sequence())
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;  // all but GPT-2, and so is rope_scaling
  RotaryScaling rope_scaling{};
  // GPT-2, in training: dropout of attention weights (attn_pdrop), of the embeddings (embd_pdrop), and of the results
  // that attention and MLP add to the residual (resid_pdrop).
  double attention_dropout = 0;
  double embedding_dropout = 0;
  double residual_dropout = 0;
  double initializer_range = 0.02;     // standard deviation of the first weights
  bool qkv_bias = false;               // Qwen2, GPT-2: true; Llama, Qwen3: attention_bias; Qwen2-MoE: qkv_bias
  bool attention_output_bias = false;  // GPT-2: true; Llama, Qwen3: attention_bias
  bool mlp_bias = false;
  bool qk_norm = false;                                     // Qwen3: RMSNorm over every head of q and k
  std::optional<MoeConfig> moe{};                           // Qwen3-MoE, Qwen2-MoE, Mixtral, DeepSeek-V3
  std::optional<LatentAttentionConfig> latent_attention{};  // DeepSeek-V3
  bool tie_word_embeddings = false;
  // Kept for generation and for writing them back. The row of pad_token_id gets no gradient from the embedding, as in
  // transformers (padding_idx); GPT-2's does.
  std::optional<std::int64_t> bos_token_id = {};
  std::vector<std::int64_t> eos_token_ids = {};
  std::optional<std::int64_t> pad_token_id = {};

  bool operator==(const DecoderConfig&) const = default;
};

Rotary rotary_of(const DecoderConfig& config);
std::int64_t longest_sequence(const DecoderConfig& config);
// "max_position_embeddings is 256", or with a scaling that extends it "longest sequence is 512 (...)".
std::string longest_sequence_text(const DecoderConfig& config);

// Whether layer `layer`, counted from 0, has experts.
bool is_sparse_layer(const DecoderConfig& config, std::int64_t layer);

// Reads a folder's config.json, a .json file, or a .yaml/.yml file.
DecoderConfig load_decoder_config(const std::filesystem::path& path);
// The same from text; `file_name` is its name in messages.
DecoderConfig parse_decoder_json(std::string_view text, std::string_view file_name);
DecoderConfig parse_decoder_yaml(std::string_view text, std::string_view file_name);

// A config.json for transformers (4 and 5: rotary base and scaling are written in both spellings); parses back to an
// equal config.
std::string to_json(const DecoderConfig& config);

}  // namespace loom::models
