#include "engine/convert/mcore/model_shape.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <system_error>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/folder_kind.h"

namespace loom::checkpoint {
namespace {

constexpr std::array<std::string_view, 4> kFamilies{"llama", "qwen2", "qwen3", "qwen3_moe"};

double rotary_base(const config::Section& config) {
  if (const auto rope = config.mapping("rope_parameters")) return rope->positive("rope_theta", 10000);
  return config.positive("rope_theta", 10000);
}

// Far above any model: sizes whose products are no numbers any more are mistakes.
constexpr std::int64_t kMostLayers = 100'000;
constexpr std::int64_t kMostSize = 1 << 24;

std::int64_t size_of(const config::Section& config, std::string_view key, std::int64_t most = kMostSize) {
  const std::int64_t size = config.count(key);
  if (size > most) config.reject(key, "use at most {}", most);
  return size;
}

std::int64_t size_or(const config::Section& config, std::string_view key, std::int64_t fallback) {
  return config.has(key) ? size_of(config, key) : fallback;
}

}  // namespace

ModelShape read_model_shape(const std::string& flag, const std::filesystem::path& folder) {
  ModelShape shape;
  shape.file = folder / "config.json";
  if (const std::string why = io::why_no_model(folder); !why.empty()) {
    config_error("{}: {} {}", flag, folder.string(), why);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(shape.file, error)) {
    config_error("{}: {} has no config.json; give the folder of the model", flag, folder.string());
  }
  const config::Section config(config::parse_json(config::read_text(shape.file, "a config.json"), shape.file.string()),
                               config::UnknownKeys::kMayBe);
  shape.model_type = config.text("model_type");
  if (std::ranges::find(kFamilies, shape.model_type) == kFamilies.end()) {
    config_error("{}: model_type is '{}', which is not converted from or to Megatron's layout; {} are",
                 shape.file.string(), shown_text(shape.model_type), fmt::join(kFamilies, ", "));
  }
  shape.layers = size_of(config, "num_hidden_layers", kMostLayers);
  shape.hidden = size_of(config, "hidden_size");
  shape.heads = size_of(config, "num_attention_heads");
  shape.groups = size_or(config, "num_key_value_heads", shape.heads);
  shape.head_width = size_or(config, "head_dim", std::max<std::int64_t>(1, shape.hidden / shape.heads));
  shape.vocabulary = size_of(config, "vocab_size");
  shape.intermediate = size_of(config, "intermediate_size");
  shape.positions = config.count("max_position_embeddings", 2048);
  shape.norm_eps = config.positive("rms_norm_eps", 1e-6);
  shape.rotary_base = rotary_base(config);
  shape.tied = config.flag("tie_word_embeddings", false);
  shape.output_bias = shape.model_type != "qwen2" && config.flag("attention_bias", false);
  shape.qkv_bias = shape.model_type == "qwen2" || shape.output_bias;
  shape.head_norms = shape.model_type.starts_with("qwen3");
  if (shape.model_type == "qwen3_moe") {
    shape.experts_per_token = size_or(config, "num_experts_per_tok", 8);
    shape.sparse_step = config.count("decoder_sparse_step", 1);
    shape.dense_layers = config.integers("mlp_only_layers");
    shape.experts = config.has("num_experts") ? size_of(config, "num_experts") : size_of(config, "num_local_experts");
    shape.expert_intermediate = size_of(config, "moe_intermediate_size");
  }
  if (shape.heads % shape.groups != 0) {
    config_error("{}: num_attention_heads is {}, which num_key_value_heads {} does not divide", shape.file.string(),
                 shape.heads, shape.groups);
  }
  return shape;
}

bool ModelShape::has_experts(std::int64_t layer) const {
  return experts > 0 && (layer + 1) % sparse_step == 0 && std::ranges::find(dense_layers, layer) == dense_layers.end();
}

void check_model(const ModelShape& shape, const ModelChecks& checks) {
  const std::int64_t noops = checks.noop_layers;
  if (!checks.model_types.empty() &&
      std::ranges::find(checks.model_types, shape.model_type) == checks.model_types.end()) {
    config_error("{} is for model_type {}, but {} has '{}'; leave the flag out, or give the folder of such a model",
                 checks.type_flag, fmt::join(checks.model_types, " and "), shape.file.string(), shape.model_type);
  }
  if (checks.layers && *checks.layers != shape.layers && *checks.layers != shape.layers + noops) {
    config_error("--num-layers is {}, but {} has {} (num_hidden_layers){}; write {}, or leave the flag out",
                 *checks.layers, shape.file.string(), shape.layers,
                 noops == 0 ? "" : fmt::format(" and --noop-layers {} more", noops), shape.layers + noops);
  }
  if (checks.qkv_bias && !shape.qkv_bias) {
    config_error(
        "--add-qkv-bias is given, but {} is of a {} model without biases of queries, keys and values; remove it",
        shape.file.string(), shape.model_type);
  }
}

}  // namespace loom::checkpoint
