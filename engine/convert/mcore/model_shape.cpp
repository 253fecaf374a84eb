#include "engine/convert/mcore/model_shape.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/folder_kind.h"
#include "models/decoder/decoder_config.h"
#include "models/hub/config_reader.h"

namespace loom::checkpoint {
namespace {

using models::DecoderFamily;
constexpr std::array kFamilies{DecoderFamily::kLlama, DecoderFamily::kQwen2, DecoderFamily::kQwen3,
                               DecoderFamily::kQwen3Moe, DecoderFamily::kMixtral};

void check_family(const std::filesystem::path& file) {
  const std::string type = models::ConfigReader::load(file).text("model_type");
  std::vector<std::string_view> converted;
  for (const DecoderFamily family : kFamilies) converted.push_back(models::model_type(family));
  if (std::ranges::find(converted, type) != converted.end()) return;
  config_error(
      "{}: model_type is '{}', which is not converted from or to Megatron's layout; {} are. Training reads the folder "
      "itself: --init-from-hf-path",
      file.string(), shown_text(type), fmt::join(converted, ", "));
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
  check_family(shape.file);
  const models::DecoderConfig config = models::load_decoder_config(shape.file);
  shape.model_type = models::model_type(config.family);
  shape.layers = config.num_hidden_layers;
  shape.hidden = config.hidden_size;
  shape.heads = config.num_attention_heads;
  shape.groups = config.num_key_value_heads;
  shape.head_width = config.head_dim;
  shape.vocabulary = config.vocab_size;
  shape.intermediate = config.intermediate_size;
  shape.positions = config.max_position_embeddings;
  shape.norm_eps = config.norm_eps;
  shape.rotary_base = config.rope_theta;
  shape.rotary_scaling = config.rope_scaling;
  shape.tied = config.tie_word_embeddings;
  shape.output_bias = config.attention_output_bias;
  shape.qkv_bias = config.qkv_bias;
  shape.head_norms = config.qk_norm;
  shape.mixtral_names = config.family == DecoderFamily::kMixtral;
  if (!config.moe) return shape;
  shape.experts = config.moe->num_experts;
  shape.experts_per_token = config.moe->num_experts_per_tok;
  shape.expert_intermediate = config.moe->moe_intermediate_size;
  shape.sparse_step = config.moe->decoder_sparse_step;
  shape.dense_layers = config.moe->mlp_only_layers;
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
