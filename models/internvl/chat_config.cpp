// The configuration of OpenGVLab's InternVLChatModel.
#include "models/decoder/decoder_families.h"
#include "models/hub/built_values.h"
#include "models/internvl/config_parts.h"

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kModelType = "internvl_chat";
constexpr std::string_view kArchitecture = "InternVLChatModel";
// The published vocabularies end with <img>, </img>, <IMG_CONTEXT> and six tokens of other tasks.
constexpr std::int64_t kIdsFromImageTokenOn = 7;

void only_absent(const ConfigReader& reader, std::string_view key) {
  if (reader.has(key)) reader.reject(key, "it is not built; leave it out");
}

void only_zero(const ConfigReader& reader, std::string_view key) {
  if (reader.integer(key).value_or(0) != 0) {
    reader.reject(key, "adapters inside the model are not read; merge them into its weights, and write 0");
  }
}

// InternVisionConfig's own.
InternVLVisionConfig default_vision() {
  return {.hidden_size = 3200,
          .num_hidden_layers = 48,
          .num_attention_heads = 25,
          .intermediate_size = 12800,
          .image_size = 224,
          .rms_norm = true,
          .use_qk_norm = true};
}

void check_rate(const ConfigReader& reader, std::string_view key) {
  const double rate = reader.number(key).value_or(0);
  if (!(rate >= 0 && rate < 1)) reader.reject(key, "a share from 0 to below 1 is expected");
}

InternVLVisionConfig read_vision(const ConfigReader& reader) {
  InternVLVisionConfig config = default_vision();
  only_text(reader, "model_type", "intern_vit_6b");
  read_vision_sizes(reader, config);
  config.layer_scale_init_value = reader.number("initializer_factor").value_or(config.layer_scale_init_value);
  config.attention_bias = reader.flag("qkv_bias", config.attention_bias);
  config.use_qk_norm = reader.flag("qk_normalization", config.use_qk_norm);
  config.freeze = reader.flag("freeze", config.freeze);
  constexpr double kQkNormEps = 1e-6;
  if (config.use_qk_norm && config.layer_norm_eps != kQkNormEps) {
    reader.reject("layer_norm_eps", "with qk_normalization only 1e-6 is built");
  }
  only_text(reader, "hidden_act", "gelu");
  for (const char* key : {"dropout", "attention_dropout"}) no_dropout(reader, key);
  check_rate(reader, "drop_path_rate");
  reader.flag("use_flash_attn", true);  // one arithmetic here
  check_vision(reader, config);
  if (reader.strict()) reader.refuse_unread();
  return config;
}

// Tiles of a picture.
constexpr std::int64_t kMostTiles = 1 << 10;

InternVLChatOptions read_options(const ConfigReader& reader, const InternVLVisionConfig& vision) {
  InternVLChatOptions options;
  options.force_image_size = read_side(reader, "force_image_size", 0);
  if (options.force_image_size % vision.patch_size != 0) {
    reader.reject("force_image_size", "it must be a multiple of vision_config.patch_size ({})", vision.patch_size);
  }
  options.dynamic_image_size = reader.flag("dynamic_image_size", options.dynamic_image_size);
  options.use_thumbnail = reader.flag("use_thumbnail", options.use_thumbnail);
  options.min_dynamic_patch = reader.count("min_dynamic_patch", options.min_dynamic_patch);
  options.max_dynamic_patch = reader.count("max_dynamic_patch", options.max_dynamic_patch);
  if (options.max_dynamic_patch > kMostTiles) reader.reject("max_dynamic_patch", "use at most {}", kMostTiles);
  if (options.max_dynamic_patch < options.min_dynamic_patch) {
    reader.reject("max_dynamic_patch", "use at least min_dynamic_patch, {}", options.min_dynamic_patch);
  }
  options.prompt_template = reader.text("template", options.prompt_template);
  return options;
}

void check_built(const ConfigReader& reader) {
  // Without the key the model's code takes v1, which leaves rows and columns exchanged.
  if (reader.text("ps_version", "v1") != "v2") reader.reject("ps_version", "only \"v2\" is built");
  if (reader.integer("select_layer").value_or(-1) != -1) {
    reader.reject("select_layer", "only -1, the last layer, is built");
  }
  only_flag(reader, "pad2square", false);
  only_absent(reader, "image_fold");
  for (const char* key : {"use_backbone_lora", "use_llm_lora"}) only_zero(reader, key);
}

}  // namespace

bool is_internvl_chat(const ConfigReader& reader) {
  const std::string type = reader.text("model_type", "");
  if (!type.empty()) return type == kModelType;
  const std::vector<std::string> classes = reader.texts("architectures");
  return !classes.empty() && classes.front() == kArchitecture;
}

InternVLConfig read_internvl_chat_config(const ConfigReader& reader) {
  InternVLConfig config;
  config.vision = read_vision(section(reader, "vision_config"));
  read_text(section(reader, "llm_config"), config);
  config.text.tie_word_embeddings = reader.flag("tie_word_embeddings", config.text.tie_word_embeddings);
  config.chat = read_options(reader, config.vision);
  read_downsample_factor(reader, config);
  config.image_seq_length = config.image_tokens();
  read_image_token_id(reader, "llm_config", config.text.vocab_size - kIdsFromImageTokenOn, config);
  check_built(reader);
  if (reader.strict()) reader.refuse_unread();
  return config;
}

std::string internvl_chat_json(const InternVLConfig& config) {
  Json vision;
  vision["architectures"] = {"InternVisionModel"};
  vision["model_type"] = "intern_vit_6b";
  vision["hidden_size"] = config.vision.hidden_size;
  vision["num_hidden_layers"] = config.vision.num_hidden_layers;
  vision["num_attention_heads"] = config.vision.num_attention_heads;
  vision["intermediate_size"] = config.vision.intermediate_size;
  vision["image_size"] = config.vision.image_size;
  vision["patch_size"] = config.vision.patch_size;
  vision["num_channels"] = config.vision.num_channels;
  vision["layer_norm_eps"] = config.vision.layer_norm_eps;
  vision["initializer_factor"] = config.vision.layer_scale_init_value;
  vision["initializer_range"] = config.vision.initializer_range;
  vision["norm_type"] = config.vision.rms_norm ? "rms_norm" : "layer_norm";
  vision["qkv_bias"] = config.vision.attention_bias;
  vision["qk_normalization"] = config.vision.use_qk_norm;
  vision["hidden_act"] = "gelu";
  for (const char* key : {"dropout", "attention_dropout"}) vision[key] = 0.0;
  if (config.vision.freeze) vision["freeze"] = true;
  Json json;
  json["architectures"] = {kArchitecture};
  json["model_type"] = kModelType;
  json["vision_config"] = vision;
  json["llm_config"] = decoder_json(config.text);
  if (config.freeze_text) json["llm_config"]["freeze"] = true;
  json["tie_word_embeddings"] = config.text.tie_word_embeddings;
  json["image_token_id"] = config.image_token_id;
  json["downsample_ratio"] = 1.0 / static_cast<double>(config.downsample_factor);
  json["ps_version"] = "v2";
  json["select_layer"] = -1;
  if (config.chat->force_image_size > 0) json["force_image_size"] = config.chat->force_image_size;
  json["dynamic_image_size"] = config.chat->dynamic_image_size;
  json["use_thumbnail"] = config.chat->use_thumbnail;
  json["min_dynamic_patch"] = config.chat->min_dynamic_patch;
  json["max_dynamic_patch"] = config.chat->max_dynamic_patch;
  json["template"] = config.chat->prompt_template;
  return json.dump(2) + "\n";
}

}  // namespace loom::models
