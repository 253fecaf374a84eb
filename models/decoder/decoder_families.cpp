#include "models/decoder/decoder_families.h"

#include <algorithm>
#include <array>

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;
using D = DecoderConfig;

ConfigKeys joined(std::initializer_list<ConfigKeys> parts) {
  ConfigKeys all;
  for (const ConfigKeys& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// --- keys of several families

ConfigKeys sizes() {
  return {keys::count("hidden_size", &D::hidden_size), keys::count("intermediate_size", &D::intermediate_size),
          keys::count("num_hidden_layers", &D::num_hidden_layers),
          keys::count("num_attention_heads", &D::num_attention_heads)};
}

// What RMSNorm decoders with rotary positions and SwiGLU have in common.
ConfigKeys of_rotary_family(double theta = 10000) {
  return {keys::optional_count("head_dim", &D::head_dim),
          keys::count("max_position_embeddings", &D::max_position_embeddings),
          keys::positive("rms_norm_eps", &D::norm_eps, 1e-6),
          keys::rotary(theta),
          keys::only_text("hidden_act", "silu"),
          keys::no_dropout("attention_dropout"),
          keys::flag("tie_word_embeddings", &D::tie_word_embeddings, false)};
}

ConfigKey num_key_value_heads() { return keys::count("num_key_value_heads", &D::num_key_value_heads); }

// Bias of queries, keys, values and the output.
ConfigKey attention_bias() {
  return {"attention_bias",
          [](const ConfigReader& reader, D& config) {
            config.qkv_bias = config.attention_output_bias = reader.flag("attention_bias", false);
          },
          [](const D& config, Json& json) { json["attention_bias"] = config.qkv_bias; }};
}

ConfigKey no_sliding_windows() {
  return {"use_sliding_window",
          [](const ConfigReader& reader, D&) {
            const bool used = reader.flag("use_sliding_window", false);
            const auto window = reader.integer("sliding_window");
            if (used && window) {
              reader.reject("sliding_window", "sliding windows are not built, set use_sliding_window to false");
            }
            reader.integer("max_window_layers");
            for (const std::string& type : reader.texts("layer_types")) {
              if (type != "full_attention") reader.reject("layer_types", "only \"full_attention\" is built");
            }
          },
          [](const D&, Json& json) { json["use_sliding_window"] = false; }};
}

// --- experts

std::int64_t read_num_experts(const ConfigReader& reader) {
  if (!reader.has("num_local_experts")) return reader.count("num_experts");
  const std::int64_t count = reader.count("num_local_experts");
  if (reader.has("num_experts") && reader.count("num_experts") != count) {
    reader.reject("num_experts", "the file also says num_local_experts is {}", count);
  }
  return count;
}

// `written`: the name that published files of the family have.
ConfigKey num_experts(std::string_view written) {
  return keys::row(written, &MoeConfig::num_experts,
                   [](const ConfigReader& reader, const D&) { return read_num_experts(reader); });
}

ConfigKey num_experts_per_tok() {
  return keys::row("num_experts_per_tok", &MoeConfig::num_experts_per_tok,
                   [](const ConfigReader& reader, const D& config) {
                     const std::int64_t count = reader.count("num_experts_per_tok");
                     if (count > config.moe->num_experts) {
                       reader.reject("num_experts_per_tok", "there are {} experts", config.moe->num_experts);
                     }
                     return count;
                   });
}

ConfigKeys of_router_loss() {
  return {keys::number("router_aux_loss_coef", &MoeConfig::router_aux_loss_coef, 0.001),
          keys::flag("output_router_logits", &MoeConfig::output_router_logits, false)};
}

ConfigKey only_number(std::string_view key, std::int64_t built) {
  return {key,
          [=](const ConfigReader& reader, D&) {
            if (reader.integer(key).value_or(built) != built) reader.reject(key, "only {} is built", built);
          },
          [=](const D&, Json& json) { json[key] = built; }};
}

ConfigKey mlp_only_layers() {
  return keys::row("mlp_only_layers", &MoeConfig::mlp_only_layers, [](const ConfigReader& reader, const D& config) {
    const std::vector<std::int64_t> dense = reader.integers("mlp_only_layers");
    for (const std::int64_t layer : dense) {
      if (layer >= 0 && layer < config.num_hidden_layers) continue;
      reader.reject("mlp_only_layers", "layers are numbered 0 to {}", config.num_hidden_layers - 1);
    }
    return dense;
  });
}

// Keys of the experts in Qwen's families.
ConfigKeys of_qwen_experts() {
  return joined({{num_experts("num_experts"), num_experts_per_tok(),
                  keys::count("moe_intermediate_size", &MoeConfig::moe_intermediate_size),
                  keys::flag("norm_topk_prob", &MoeConfig::norm_topk_prob, false),
                  keys::count("decoder_sparse_step", &MoeConfig::decoder_sparse_step, 1), mlp_only_layers()},
                 of_router_loss()});
}

// --- the families

ConfigKeys qwen2_keys() { return joined({sizes(), of_rotary_family(), {num_key_value_heads(), no_sliding_windows()}}); }
void settle_qwen2(D& config) { config.qkv_bias = true; }
ConfigKeys qwen2_vl_keys() {
  constexpr double kTheta = 1'000'000;  // of transformers' Qwen2VLTextConfig
  return joined({sizes(), of_rotary_family(kTheta), {num_key_value_heads(), no_sliding_windows()}});
}

ConfigKeys llama_keys() {
  return joined({sizes(),
                 of_rotary_family(),
                 {keys::count_or("num_key_value_heads", &D::num_key_value_heads, &D::num_attention_heads),
                  attention_bias(), keys::flag("mlp_bias", &D::mlp_bias, false)}});
}

ConfigKeys qwen3_keys() {
  return joined({sizes(), of_rotary_family(), {num_key_value_heads(), attention_bias(), no_sliding_windows()}});
}
void settle_qwen3(D& config) {
  constexpr std::int64_t kDefaultHeadDim = 128;  // of transformers' Qwen3Config
  config.qk_norm = true;
  if (config.head_dim == 0) config.head_dim = kDefaultHeadDim;
}

ConfigKeys qwen3_vl_keys() {
  constexpr double kTheta = 5'000'000;  // of transformers' Qwen3VLTextConfig
  return joined({sizes(), of_rotary_family(kTheta), {num_key_value_heads(), attention_bias(), no_sliding_windows()}});
}

ConfigKeys qwen3_moe_keys() { return joined({qwen3_keys(), of_qwen_experts()}); }
void settle_qwen3_moe(D& config) { config.qk_norm = true; }

ConfigKeys qwen2_moe_keys() {
  return joined({sizes(),
                 of_rotary_family(),
                 {num_key_value_heads(), keys::flag("qkv_bias", &D::qkv_bias, true), no_sliding_windows()},
                 of_qwen_experts(),
                 {keys::count("shared_expert_intermediate_size", &MoeConfig::shared_expert_intermediate_size)}});
}

// Its experts have the size of a dense MLP, and every layer has them.
ConfigKeys mixtral_keys() {
  const ConfigKey no_sliding_window{"sliding_window",
                                    [](const ConfigReader& reader, D&) {
                                      if (!reader.integer("sliding_window")) return;
                                      reader.reject("sliding_window", "sliding windows are not built, set it to null");
                                    },
                                    [](const D&, Json& json) { json["sliding_window"] = nullptr; }};
  const ConfigKey no_jitter{"router_jitter_noise",
                            [](const ConfigReader& reader, D&) {
                              if (reader.number("router_jitter_noise").value_or(0) == 0) return;
                              reader.reject("router_jitter_noise", "only 0 is built");
                            },
                            [](const D&, Json& json) { json["router_jitter_noise"] = 0.0; }};
  return joined(
      {sizes(),
       of_rotary_family(1e6),
       {num_key_value_heads(), no_sliding_window, num_experts("num_local_experts"), num_experts_per_tok(), no_jitter},
       of_router_loss()});
}
void settle_mixtral(D& config) {
  config.moe->moe_intermediate_size = config.intermediate_size;
  config.moe->norm_topk_prob = true;
}

// --- DeepSeek-V3

// `key` only restates what other keys say.
ConfigKey restated(std::string_view key, std::int64_t (*value)(const D&)) {
  return {key,
          [=](const ConfigReader& reader, D& config) {
            if (reader.has(key) && reader.count(key) != value(config)) {
              reader.reject(key, "the other keys of the heads' sizes make it {}", value(config));
            }
          },
          [=](const D& config, Json& json) { json[key] = value(config); }};
}

ConfigKeys of_latent_attention() {
  using L = LatentAttentionConfig;
  const ConfigKey q_lora_rank{"q_lora_rank",
                              [](const ConfigReader& reader, D& config) {
                                const bool given = reader.integer("q_lora_rank").has_value();
                                keys::member(config, &L::q_lora_rank) = given ? reader.count("q_lora_rank") : 0;
                              },
                              [](const D& config, Json& json) {
                                const std::int64_t rank = config.latent_attention->q_lora_rank;
                                json["q_lora_rank"] = rank == 0 ? Json(nullptr) : Json(rank);
                              }};
  return {q_lora_rank,
          keys::count("kv_lora_rank", &L::kv_lora_rank),
          keys::count("qk_nope_head_dim", &L::qk_nope_head_dim),
          keys::count("qk_rope_head_dim", &L::qk_rope_head_dim),
          keys::count("v_head_dim", &L::v_head_dim),
          keys::flag("rope_interleave", &L::rope_interleave, true),
          restated("head_dim", [](const D& config) { return config.latent_attention->qk_rope_head_dim; }),
          restated("qk_head_dim",
                   [](const D& config) {
                     return config.latent_attention->qk_nope_head_dim + config.latent_attention->qk_rope_head_dim;
                   }),
          restated("num_key_value_heads", [](const D& config) { return config.num_attention_heads; })};
}

ConfigKeys of_deepseek_experts() {
  const auto groups = [](const ConfigReader& reader, const D& config) {
    const std::int64_t groups = reader.count("n_group", 1);
    if (config.moe->num_experts % groups != 0 || config.moe->num_experts / groups < (groups > 1 ? 2 : 1)) {
      reader.reject("n_group", "the {} experts do not make so many equal groups of two or more",
                    config.moe->num_experts);
    }
    return groups;
  };
  const auto best = [](const ConfigReader& reader, const D& config) {
    const MoeConfig& moe = *config.moe;
    const std::int64_t best = reader.count("topk_group", 1);
    if (best > moe.n_group || best * (moe.num_experts / moe.n_group) < moe.num_experts_per_tok) {
      reader.reject("topk_group", "a token has {} experts, and there are {} groups of {}", moe.num_experts_per_tok,
                    moe.n_group, moe.num_experts / moe.n_group);
    }
    return best;
  };
  const auto dense = [](const ConfigReader& reader, const D&) {
    const std::int64_t layers = reader.integer("first_k_dense_replace").value_or(0);
    if (layers < 0) reader.reject("first_k_dense_replace", "it counts layers");
    return layers;
  };
  return {keys::count("n_routed_experts", &MoeConfig::num_experts),
          num_experts_per_tok(),
          keys::count("moe_intermediate_size", &MoeConfig::moe_intermediate_size),
          keys::count("n_shared_experts", &MoeConfig::n_shared_experts),
          keys::flag("norm_topk_prob", &MoeConfig::norm_topk_prob, true),
          keys::positive("routed_scaling_factor", &MoeConfig::routed_scaling_factor, 1),
          keys::row("n_group", &MoeConfig::n_group, groups),
          keys::row("topk_group", &MoeConfig::topk_group, best),
          keys::row("first_k_dense_replace", &MoeConfig::first_k_dense_replace, dense),
          keys::only_text("scoring_func", "sigmoid"),
          keys::only_text("topk_method", "noaux_tc"),
          only_number("moe_layer_freq", 1),
          keys::only_flag("output_router_logits", false)};
}

ConfigKeys deepseek_v3_keys() {
  return joined({sizes(),
                 of_latent_attention(),
                 of_deepseek_experts(),
                 {keys::count("max_position_embeddings", &D::max_position_embeddings),
                  keys::positive("rms_norm_eps", &D::norm_eps, 1e-6), keys::rotary(10000),
                  keys::only_text("hidden_act", "silu"), keys::no_dropout("attention_dropout"), attention_bias(),
                  keys::flag("tie_word_embeddings", &D::tie_word_embeddings, false)}});
}
void settle_deepseek_v3(D& config) {
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim = config.latent_attention->qk_nope_head_dim + config.latent_attention->qk_rope_head_dim;
  config.moe->sigmoid_router = true;
  config.moe->router_aux_loss_coef = 0;
  config.moe->shared_expert_intermediate_size = config.moe->n_shared_experts * config.moe->moe_intermediate_size;
}

ConfigKeys gpt2_keys() {
  return {keys::count("n_embd", &D::hidden_size),
          keys::count_or("n_inner", &D::intermediate_size, &D::hidden_size, 4),
          keys::count("n_layer", &D::num_hidden_layers),
          keys::count("n_head", &D::num_attention_heads),
          keys::count("n_positions", &D::max_position_embeddings),
          keys::positive("layer_norm_epsilon", &D::norm_eps, 1e-5),
          keys::flag("tie_word_embeddings", &D::tie_word_embeddings, true),
          keys::only_text("activation_function", "gelu_new"),
          keys::share("attn_pdrop", &D::attention_dropout, 0.1),
          keys::share("embd_pdrop", &D::embedding_dropout, 0.1),
          keys::share("resid_pdrop", &D::residual_dropout, 0.1),
          keys::only_flag("scale_attn_weights", true),
          keys::only_flag("scale_attn_by_inverse_layer_idx", false),
          keys::only_flag("reorder_and_upcast_attn", false),
          keys::only_flag("add_cross_attention", false)};
}
void settle_gpt2(D& config) {
  config.num_key_value_heads = config.num_attention_heads;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
}

void settle_nothing(D&) {}

constexpr std::array<DecoderFamilyEntry, 11> kFamilies{{
    {DecoderFamily::kQwen2, "qwen2", "Qwen2", "Qwen2ForCausalLM", qwen2_keys, settle_qwen2},
    {DecoderFamily::kLlama, "llama", "Llama", "LlamaForCausalLM", llama_keys, settle_nothing},
    {DecoderFamily::kQwen3, "qwen3", "Qwen3", "Qwen3ForCausalLM", qwen3_keys, settle_qwen3},
    {DecoderFamily::kQwen3Moe, "qwen3_moe", "Qwen3Moe", "Qwen3MoeForCausalLM", qwen3_moe_keys, settle_qwen3_moe},
    {DecoderFamily::kQwen2Moe, "qwen2_moe", "Qwen2Moe", "Qwen2MoeForCausalLM", qwen2_moe_keys, settle_nothing},
    {DecoderFamily::kMixtral, "mixtral", "Mixtral", "MixtralForCausalLM", mixtral_keys, settle_mixtral},
    {DecoderFamily::kDeepseekV3, "deepseek_v3", "DeepseekV3", "DeepseekV3ForCausalLM", deepseek_v3_keys,
     settle_deepseek_v3},
    {DecoderFamily::kGpt2, "gpt2", "GPT2", "GPT2LMHeadModel", gpt2_keys, settle_gpt2},
    {DecoderFamily::kQwen2Vl, "qwen2_vl_text", "Qwen2VL", "", qwen2_vl_keys, settle_qwen2, "TextModel", "Qwen2"},
    {DecoderFamily::kQwen2_5Vl, "qwen2_5_vl_text", "Qwen2_5_VL", "", qwen2_vl_keys, settle_qwen2, "TextModel", "Qwen2"},
    {DecoderFamily::kQwen3Vl, "qwen3_vl_text", "Qwen3VLText", "", qwen3_vl_keys, settle_qwen3},
}};

}  // namespace

ConfigKey keys::only_flag(std::string_view key, bool built) {
  return {key,
          [=](const ConfigReader& reader, DecoderConfig&) {
            if (reader.flag(key, built) != built) reader.reject(key, "only {} is built", built);
          },
          nullptr};
}

ConfigKey keys::only_text(std::string_view key, std::string_view built) {
  return {key,
          [=](const ConfigReader& reader, DecoderConfig&) {
            if (reader.text(key, built) != built) reader.reject(key, "only \"{}\" is built", built);
          },
          [=](const DecoderConfig&, Json& json) { json[key] = built; }};
}

ConfigKey keys::no_dropout(std::string_view key) {
  return {key,
          [=](const ConfigReader& reader, DecoderConfig&) {
            if (reader.number(key).value_or(0) != 0) reader.reject(key, "dropout is not built, set it to 0");
          },
          [=](const DecoderConfig&, Json& json) { json[key] = 0.0; }};
}

std::span<const DecoderFamilyEntry> decoder_families() { return kFamilies; }

const DecoderFamilyEntry& entry_of(DecoderFamily family) {
  return *std::find_if(kFamilies.begin(), kFamilies.end(),
                       [&](const DecoderFamilyEntry& entry) { return entry.family == family; });
}

}  // namespace loom::models
