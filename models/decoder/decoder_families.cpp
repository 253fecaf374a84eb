#include "models/decoder/decoder_families.h"

#include <algorithm>
#include <array>

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;

void refuse_dropout(const ConfigReader& reader, std::string_view key) {
  if (reader.number(key).value_or(0) != 0) reader.reject(key, "dropout is not built, set it to 0");
}

void refuse_flag(const ConfigReader& reader, std::string_view key, bool built) {
  if (reader.flag(key, built) != built) reader.reject(key, "only {} is built", built);
}

void refuse_other_text(const ConfigReader& reader, std::string_view key, std::string_view built) {
  if (reader.text(key, built) != built) reader.reject(key, "only \"{}\" is built", built);
}

void refuse_sliding_windows(const ConfigReader& reader) {
  const bool used = reader.flag("use_sliding_window", false);
  const auto window = reader.integer("sliding_window");
  if (used && window) reader.reject("sliding_window", "sliding windows are not built, set use_sliding_window to false");
  reader.integer("max_window_layers");
  for (const std::string& type : reader.texts("layer_types")) {
    if (type != "full_attention") reader.reject("layer_types", "only \"full_attention\" is built");
  }
}

// The base of the rotary frequencies, from either spelling.
double read_rope_theta(const ConfigReader& reader) {
  constexpr double kDefault = 10000.0;
  std::optional<double> theta;
  if (reader.has("rope_theta")) theta = reader.positive("rope_theta", kDefault);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto nested = reader.mapping(key);
    if (!nested) continue;
    for (const char* type_key : {"rope_type", "type"}) refuse_other_text(*nested, type_key, "default");
    if (nested->number("partial_rotary_factor").value_or(1) != 1)
      nested->reject("partial_rotary_factor", "only 1 is built");
    if (nested->has("rope_theta")) {
      const double inner = nested->positive("rope_theta", kDefault);
      if (theta && *theta != inner) nested->reject("rope_theta", "the file also says {}", *theta);
      theta = inner;
    }
    nested->refuse_unread();
  }
  return theta.value_or(kDefault);
}

// What RMSNorm decoders with rotary positions and SwiGLU have in common.
void read_rotary_family(const ConfigReader& reader, DecoderConfig& config) {
  config.hidden_size = reader.count("hidden_size");
  config.intermediate_size = reader.count("intermediate_size");
  config.num_hidden_layers = reader.count("num_hidden_layers");
  config.num_attention_heads = reader.count("num_attention_heads");
  config.max_position_embeddings = reader.count("max_position_embeddings");
  config.norm_eps = reader.positive("rms_norm_eps", 1e-6);
  config.rope_theta = read_rope_theta(reader);
  if (reader.has("head_dim")) config.head_dim = reader.count("head_dim");
  config.tie_word_embeddings = reader.flag("tie_word_embeddings", false);
  refuse_other_text(reader, "hidden_act", "silu");
  refuse_dropout(reader, "attention_dropout");
}

void write_rotary_family(const DecoderConfig& config, Json& json) {
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  json["hidden_act"] = "silu";
  json["attention_dropout"] = 0.0;
}

void read_qwen2(const ConfigReader& reader, DecoderConfig& config) {
  read_rotary_family(reader, config);
  config.num_key_value_heads = reader.count("num_key_value_heads");
  config.qkv_bias = true;
  refuse_sliding_windows(reader);
}

void write_qwen2(const DecoderConfig& config, Json& json) {
  write_rotary_family(config, json);
  json["use_sliding_window"] = false;
}

void read_llama(const ConfigReader& reader, DecoderConfig& config) {
  read_rotary_family(reader, config);
  config.num_key_value_heads = reader.count("num_key_value_heads", config.num_attention_heads);
  config.qkv_bias = config.attention_output_bias = reader.flag("attention_bias", false);
  config.mlp_bias = reader.flag("mlp_bias", false);
}

void write_llama(const DecoderConfig& config, Json& json) {
  write_rotary_family(config, json);
  json["attention_bias"] = config.qkv_bias;
  json["mlp_bias"] = config.mlp_bias;
}

// Qwen3 and Qwen3-MoE but for the experts.
void read_qwen3_attention(const ConfigReader& reader, DecoderConfig& config) {
  read_rotary_family(reader, config);
  config.num_key_value_heads = reader.count("num_key_value_heads");
  config.qkv_bias = config.attention_output_bias = reader.flag("attention_bias", false);
  config.qk_norm = true;
  refuse_sliding_windows(reader);
}

void read_qwen3(const ConfigReader& reader, DecoderConfig& config) {
  read_qwen3_attention(reader, config);
  constexpr std::int64_t kDefaultHeadDim = 128;  // of transformers' Qwen3Config
  if (config.head_dim == 0) config.head_dim = kDefaultHeadDim;
}

void write_qwen3(const DecoderConfig& config, Json& json) {
  write_qwen2(config, json);
  json["attention_bias"] = config.qkv_bias;
}

std::int64_t read_num_experts(const ConfigReader& reader) {
  const bool local = reader.has("num_local_experts");
  if (!local) return reader.count("num_experts");
  const std::int64_t count = reader.count("num_local_experts");
  if (reader.has("num_experts") && reader.count("num_experts") != count) {
    reader.reject("num_experts", "the file also says num_local_experts is {}", count);
  }
  return count;
}

void read_qwen3_moe(const ConfigReader& reader, DecoderConfig& config) {
  read_qwen3_attention(reader, config);
  MoeConfig& moe = config.moe.emplace();
  moe.num_experts = read_num_experts(reader);
  moe.num_experts_per_tok = reader.count("num_experts_per_tok");
  moe.moe_intermediate_size = reader.count("moe_intermediate_size");
  moe.norm_topk_prob = reader.flag("norm_topk_prob", false);
  moe.decoder_sparse_step = reader.count("decoder_sparse_step", 1);
  moe.mlp_only_layers = reader.integers("mlp_only_layers");
  moe.router_aux_loss_coef = reader.number("router_aux_loss_coef").value_or(moe.router_aux_loss_coef);
  if (moe.num_experts_per_tok > moe.num_experts) {
    reader.reject("num_experts_per_tok", "there are {} experts", moe.num_experts);
  }
  for (const std::int64_t layer : moe.mlp_only_layers) {
    if (layer >= 0 && layer < config.num_hidden_layers) continue;
    reader.reject("mlp_only_layers", "layers are numbered 0 to {}", config.num_hidden_layers - 1);
  }
  if (reader.flag("output_router_logits", false)) {
    reader.reject("output_router_logits",
                  "the routers' load-balancing loss, which it adds to the loss, is not built; set it to false");
  }
}

void write_qwen3_moe(const DecoderConfig& config, Json& json) {
  write_qwen3(config, json);
  const MoeConfig& moe = *config.moe;
  json["num_experts"] = moe.num_experts;
  json["num_experts_per_tok"] = moe.num_experts_per_tok;
  json["moe_intermediate_size"] = moe.moe_intermediate_size;
  json["norm_topk_prob"] = moe.norm_topk_prob;
  json["decoder_sparse_step"] = moe.decoder_sparse_step;
  json["mlp_only_layers"] = moe.mlp_only_layers;
  json["router_aux_loss_coef"] = moe.router_aux_loss_coef;
  json["output_router_logits"] = false;
}

void read_gpt2(const ConfigReader& reader, DecoderConfig& config) {
  config.hidden_size = reader.count("n_embd");
  config.intermediate_size = reader.count("n_inner", 4 * config.hidden_size);
  config.num_hidden_layers = reader.count("n_layer");
  config.num_attention_heads = config.num_key_value_heads = reader.count("n_head");
  config.max_position_embeddings = reader.count("n_positions");
  config.norm_eps = reader.positive("layer_norm_epsilon", 1e-5);
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  refuse_other_text(reader, "activation_function", "gelu_new");
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) refuse_dropout(reader, key);
  refuse_flag(reader, "scale_attn_weights", true);
  refuse_flag(reader, "scale_attn_by_inverse_layer_idx", false);
  refuse_flag(reader, "reorder_and_upcast_attn", false);
  refuse_flag(reader, "add_cross_attention", false);
}

void write_gpt2(const DecoderConfig& config, Json& json) {
  json["n_embd"] = config.hidden_size;
  json["n_inner"] = config.intermediate_size;
  json["n_layer"] = config.num_hidden_layers;
  json["n_head"] = config.num_attention_heads;
  json["n_positions"] = config.max_position_embeddings;
  json["layer_norm_epsilon"] = config.norm_eps;
  json["activation_function"] = "gelu_new";
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[key] = 0.0;
}

constexpr std::array<DecoderFamilyEntry, 5> kFamilies{{
    {DecoderFamily::kQwen2, "qwen2", "Qwen2", "Qwen2ForCausalLM", read_qwen2, write_qwen2},
    {DecoderFamily::kLlama, "llama", "Llama", "LlamaForCausalLM", read_llama, write_llama},
    {DecoderFamily::kQwen3, "qwen3", "Qwen3", "Qwen3ForCausalLM", read_qwen3, write_qwen3},
    {DecoderFamily::kQwen3Moe, "qwen3_moe", "Qwen3Moe", "Qwen3MoeForCausalLM", read_qwen3_moe, write_qwen3_moe},
    {DecoderFamily::kGpt2, "gpt2", "GPT2", "GPT2LMHeadModel", read_gpt2, write_gpt2},
}};

}  // namespace

std::span<const DecoderFamilyEntry> decoder_families() { return kFamilies; }

const DecoderFamilyEntry& entry_of(DecoderFamily family) {
  return *std::find_if(kFamilies.begin(), kFamilies.end(),
                       [&](const DecoderFamilyEntry& entry) { return entry.family == family; });
}

}  // namespace loom::models
