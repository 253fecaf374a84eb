// ShapeOptions: a decoder's shape in the words of Megatron's flags.
//
// States    an option is empty (or false) if its flag is not given. Without a configuration the flags make the model;
//           beside one, each is compared with it (engine/cli/words/shape_flags.h, model_flags.h).
// Source    Megatron-LM, megatron/training/arguments.py; MindSpeed-LLM for scaled rotary positions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace loom::models {

struct ShapeOptions {
  std::optional<std::int64_t> num_layers;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> ffn_hidden_size;
  std::optional<std::int64_t> num_attention_heads;
  bool group_query_attention = false;
  std::optional<std::int64_t> num_query_groups;
  std::optional<std::int64_t> kv_channels;
  std::optional<std::string> normalization;
  std::optional<double> norm_epsilon;
  bool swiglu = false;
  bool disable_bias_linear = false;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  std::optional<double> attention_dropout;
  std::optional<double> hidden_dropout;
  std::optional<double> init_method_std;

  std::optional<std::int64_t> vocab_size;
  std::optional<std::int64_t> padded_vocab_size;
  std::optional<std::int64_t> make_vocab_size_divisible_by;
  std::optional<std::filesystem::path> vocab_file;

  std::optional<std::string> position_embedding_type;
  bool use_rotary_position_embeddings = false;
  std::optional<std::int64_t> max_position_embeddings;
  std::optional<double> rotary_base;
  std::optional<double> rotary_seq_len_interpolation_factor;
  bool use_rope_scaling = false;
  std::optional<std::string> rope_scaling_type;
  std::optional<double> rope_scaling_factor;
  std::optional<std::int64_t> original_max_position_embeddings;
  std::optional<double> low_freq_factor;
  std::optional<double> high_freq_factor;
  std::optional<double> beta_fast;
  std::optional<double> beta_slow;
  std::optional<double> rope_scaling_mscale;
  std::optional<double> rope_scaling_mscale_all_dim;
  std::optional<std::string> short_factor;  // numbers with commas
  std::optional<std::string> long_factor;

  std::optional<std::int64_t> num_experts;
  std::optional<std::int64_t> moe_router_topk;
  std::optional<std::int64_t> moe_ffn_hidden_size;
  std::optional<std::string> moe_layer_freq;  // "2", or a list with 1 for each layer with experts: "[0]*1+[1]*23"
  std::optional<std::int64_t> first_k_dense_replace;
  bool moe_router_pre_softmax = false;
  bool norm_topk_prob = false;

  bool operator==(const ShapeOptions&) const = default;
};

}  // namespace loom::models
