#include "engine/checkpoint/convert/model_shape.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>
#include <system_error>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

constexpr std::array<std::string_view, 4> kFamilies{"llama", "qwen2", "qwen3", "qwen3_moe"};

double rotary_base(const config::Section& config) {
  if (const auto rope = config.mapping("rope_parameters")) return rope->positive("rope_theta", 10000);
  return config.positive("rope_theta", 10000);
}

}  // namespace

ModelShape read_model_shape(const std::string& flag, const std::filesystem::path& folder) {
  ModelShape shape;
  shape.file = folder / "config.json";
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
  shape.layers = config.count("num_hidden_layers");
  shape.hidden = config.count("hidden_size");
  shape.heads = config.count("num_attention_heads");
  shape.groups = config.count("num_key_value_heads", shape.heads);
  shape.head_width = config.count("head_dim", std::max<std::int64_t>(1, shape.hidden / shape.heads));
  shape.vocabulary = config.count("vocab_size");
  shape.intermediate = config.count("intermediate_size");
  shape.positions = config.count("max_position_embeddings", 2048);
  shape.norm_eps = config.positive("rms_norm_eps", 1e-6);
  shape.rotary_base = rotary_base(config);
  shape.tied = config.flag("tie_word_embeddings", false);
  if (shape.model_type == "qwen3_moe") {
    shape.experts = config.has("num_experts") ? config.count("num_experts") : config.count("num_local_experts");
    shape.expert_intermediate = config.count("moe_intermediate_size");
  }
  if (shape.heads % shape.groups != 0) {
    config_error("{}: num_attention_heads is {}, which num_key_value_heads {} does not divide", shape.file.string(),
                 shape.heads, shape.groups);
  }
  return shape;
}

}  // namespace loom::checkpoint
