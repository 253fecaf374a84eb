#include "models/decoder/decoder_config.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/core/spelling.h"
#include "models/decoder/decoder_families.h"
#include "models/hub/config_reader.h"
#include "models/hub/size_limits.h"

namespace loom::models {
namespace {

DecoderFamily read_family(const ConfigReader& reader) {
  const std::string type = reader.text("model_type");
  std::vector<std::string> known;
  for (const DecoderFamilyEntry& entry : decoder_families()) {
    if (entry.architecture.empty()) continue;
    if (entry.model_type == type) return entry.family;
    known.emplace_back(entry.model_type);
  }
  const auto near = nearest_spelling(type, known);
  reader.reject("model_type", "known are {}{}", fmt::join(known, ", "),
                near ? fmt::format("; did you mean '{}'?", *near) : "");
}

void refuse_quantized(const ConfigReader& reader) {
  if (reader.has("quantization_config")) {
    reader.reject("quantization_config", "quantised weights are not built, use the unquantised model");
  }
}

void check_heads(const ConfigReader& reader, DecoderConfig& config) {
  const bool gpt2 = config.family == DecoderFamily::kGpt2;
  const char* const hidden_key = gpt2 ? "n_embd" : "hidden_size";
  const char* const heads_key = gpt2 ? "n_head" : "num_attention_heads";
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      reader.reject(hidden_key, "it must be a multiple of {} ({})", heads_key, config.num_attention_heads);
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    reader.reject(heads_key, "it must be a multiple of num_key_value_heads ({})", config.num_key_value_heads);
  }
  if (config.latent_attention && config.latent_attention->qk_rope_head_dim % 2 != 0) {
    reader.reject("qk_rope_head_dim", "rotary embeddings need an even one");
  }
  if (!gpt2 && !config.latent_attention && config.head_dim % 2 != 0) {
    reader.reject(reader.has("head_dim") ? "head_dim" : hidden_key, "rotary embeddings need an even head_dim, not {}",
                  config.head_dim);
  }
}

constexpr std::array<SizeLimit, 24> kLimits{{{"hidden_size", 1 << 20},
                                             {"n_embd", 1 << 20},
                                             {"intermediate_size", 1 << 24},
                                             {"n_inner", 1 << 24},
                                             {"moe_intermediate_size", 1 << 24},
                                             {"shared_expert_intermediate_size", 1 << 24},
                                             {"num_hidden_layers", 4096},
                                             {"n_layer", 4096},
                                             {"num_attention_heads", 1 << 16},
                                             {"num_key_value_heads", 1 << 16},
                                             {"n_head", 1 << 16},
                                             {"head_dim", 1 << 16},
                                             {"num_experts", 1 << 16},
                                             {"num_local_experts", 1 << 16},
                                             {"num_experts_per_tok", 1 << 16},
                                             {"decoder_sparse_step", 1 << 16},
                                             {"n_routed_experts", 1 << 16},
                                             {"n_shared_experts", 1 << 10},
                                             {"n_group", 1 << 16},
                                             {"q_lora_rank", 1 << 20},
                                             {"kv_lora_rank", 1 << 20},
                                             {"qk_nope_head_dim", 1 << 16},
                                             {"qk_rope_head_dim", 1 << 16},
                                             {"v_head_dim", 1 << 16}}};

void check_expert_weights(const ConfigReader& reader, const DecoderConfig& config, const std::string& of_hidden) {
  const MoeConfig& moe = *config.moe;
  const std::int64_t inner_size = 2 * moe.moe_intermediate_size;
  const char* const inner_key =
      reader.given("moe_intermediate_size") != nullptr ? "moe_intermediate_size" : "intermediate_size";
  check_weight(reader, inner_key, inner_size, config.hidden_size, of_hidden);
  check_weight(reader,
               moe.sigmoid_router                             ? "n_routed_experts"
               : reader.given("num_local_experts") != nullptr ? "num_local_experts"
                                                              : "num_experts",
               moe.num_experts, inner_size * config.hidden_size,
               fmt::format("{} {} and {}", inner_key, moe.moe_intermediate_size, of_hidden));
  check_weight(reader, moe.sigmoid_router ? "n_shared_experts" : "shared_expert_intermediate_size",
               moe.shared_expert_intermediate_size, config.hidden_size, of_hidden);
}

// Each weight of the model, by the key that makes it large.
void check_weights(const ConfigReader& reader, const DecoderConfig& config) {
  const bool gpt2 = config.family == DecoderFamily::kGpt2;
  const std::int64_t hidden = config.hidden_size;
  const std::string of_hidden = fmt::format("{} {}", gpt2 ? "n_embd" : "hidden_size", hidden);
  check_weight(reader, "vocab_size", config.vocab_size, hidden, of_hidden);
  if (gpt2) check_weight(reader, "n_positions", config.max_position_embeddings, hidden, of_hidden);
  const bool inner = reader.given(gpt2 ? "n_inner" : "intermediate_size") != nullptr;
  check_weight(reader,
               !gpt2   ? "intermediate_size"
               : inner ? "n_inner"
                       : "n_embd",
               config.intermediate_size, hidden, of_hidden);
  const std::int64_t heads = config.num_attention_heads;
  if (config.latent_attention) {
    const std::int64_t rank = config.latent_attention->kv_lora_rank;
    check_weight(reader, "kv_lora_rank", rank,
                 heads * (config.latent_attention->qk_nope_head_dim + config.latent_attention->v_head_dim),
                 fmt::format("{} heads", heads));
  }
  check_weight(reader,
               config.latent_attention               ? "qk_nope_head_dim"
               : reader.given("head_dim") != nullptr ? "head_dim"
               : gpt2                                ? "n_embd"
                                                     : "hidden_size",
               config.head_dim, heads * hidden, fmt::format("{} heads and {}", heads, of_hidden));
  if (config.moe) check_expert_weights(reader, config, of_hidden);
}

using Json = nlohmann::ordered_json;

Json ids_or_null(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

ConfigKey token_id(std::string_view key, std::optional<std::int64_t> DecoderConfig::*id) {
  return {
      key, [=](const ConfigReader& reader, DecoderConfig& config) { config.*id = reader.integer(key); },
      [=](const DecoderConfig& config, Json& json) { json[key] = config.*id ? Json(*(config.*id)) : Json(nullptr); }};
}

// The family's keys, between those that all have.
ConfigKeys keys_of(const DecoderFamilyEntry& family) {
  ConfigKeys all{keys::count("vocab_size", &DecoderConfig::vocab_size)};
  for (ConfigKey& key : family.keys()) all.push_back(std::move(key));
  all.push_back(keys::positive("initializer_range", &DecoderConfig::initializer_range, 0.02));
  all.push_back(token_id("bos_token_id", &DecoderConfig::bos_token_id));
  all.push_back(
      {"eos_token_id",
       [](const ConfigReader& reader, DecoderConfig& config) {
         config.eos_token_ids = reader.integers("eos_token_id");
       },
       [](const DecoderConfig& config, Json& json) { json["eos_token_id"] = ids_or_null(config.eos_token_ids); }});
  all.push_back(token_id("pad_token_id", &DecoderConfig::pad_token_id));
  return all;
}

}  // namespace

DecoderConfig read_decoder_config(const ConfigReader& reader, std::optional<DecoderFamily> family_of_model) {
  DecoderConfig config;
  config.family = family_of_model ? *family_of_model : read_family(reader);
  refuse_quantized(reader);
  check_sizes(reader, kLimits);
  const DecoderFamilyEntry& family = entry_of(config.family);
  for (const ConfigKey& key : keys_of(family)) key.read(reader, config);
  family.settle(config);
  check_heads(reader, config);
  check_rotary(reader, config);
  check_weights(reader, config);
  if (reader.strict() && !family_of_model) reader.refuse_unread();
  return config;
}

std::string_view model_type(DecoderFamily family) { return entry_of(family).model_type; }
std::string_view architecture(DecoderFamily family) { return entry_of(family).architecture; }

Rotary rotary_of(const DecoderConfig& config) {
  const std::int64_t dim = config.latent_attention ? config.latent_attention->qk_rope_head_dim : config.head_dim;
  return {dim, config.max_position_embeddings, config.rope_theta, config.rope_scaling};
}

std::int64_t longest_sequence(const DecoderConfig& config) { return longest_sequence(rotary_of(config)); }

std::string longest_sequence_text(const DecoderConfig& config) {
  const std::int64_t longest = longest_sequence(config);
  if (longest == config.max_position_embeddings) return fmt::format("max_position_embeddings is {}", longest);
  return fmt::format("longest sequence is {} (max_position_embeddings {}, rope_type {} of factor {})", longest,
                     config.max_position_embeddings, name(config.rope_scaling.type), config.rope_scaling.factor);
}

bool is_sparse_layer(const DecoderConfig& config, std::int64_t layer) {
  if (!config.moe) return false;
  const std::vector<std::int64_t>& dense = config.moe->mlp_only_layers;
  return std::find(dense.begin(), dense.end(), layer) == dense.end() && layer >= config.moe->first_k_dense_replace &&
         (layer + 1) % config.moe->decoder_sparse_step == 0;
}

DecoderConfig parse_decoder_json(std::string_view text, std::string_view file_name) {
  return read_decoder_config(ConfigReader::from_json(text, file_name));
}

DecoderConfig parse_decoder_yaml(std::string_view text, std::string_view file_name) {
  return read_decoder_config(ConfigReader::from_yaml(text, file_name));
}

DecoderConfig load_decoder_config(const std::filesystem::path& path) {
  return read_decoder_config(ConfigReader::load(path));
}

nlohmann::ordered_json decoder_json(const DecoderConfig& config) {
  Json json;
  if (!architecture(config.family).empty()) json["architectures"] = {architecture(config.family)};
  json["model_type"] = model_type(config.family);
  for (const ConfigKey& key : keys_of(entry_of(config.family))) {
    if (key.write) key.write(config, json);
  }
  return json;
}

std::string to_json(const DecoderConfig& config) { return decoder_json(config).dump(2) + "\n"; }

}  // namespace loom::models
