#include "models/internvl/internvl_config.h"

#include <array>
#include <cmath>

#include "models/decoder/decoder_families.h"
#include "models/hub/built_values.h"
#include "models/hub/config_reader.h"
#include "models/hub/size_limits.h"

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;

void only_flag(const ConfigReader& reader, std::string_view key, bool built) {
  if (reader.flag(key, built) != built) reader.reject(key, "only {} is built", built);
}

void no_dropout(const ConfigReader& reader, std::string_view key) {
  if (reader.number(key).value_or(0) != 0) reader.reject(key, "dropout is not built, set it to 0");
}

constexpr std::int64_t kMostSide = 1 << 16;  // pixels

// One number, or two equal ones.
std::int64_t read_side(const ConfigReader& reader, std::string_view key, std::int64_t fallback) {
  const std::vector<std::int64_t> sizes = reader.integers(key);
  if (sizes.empty() && !reader.has(key)) return fallback;
  if (sizes.empty() || sizes.size() > 2 || sizes.front() < 1)
    reader.reject(key, "a size or [height, width] is expected");
  if (sizes.front() > kMostSide) reader.reject(key, "it must be at most {}", kMostSide);
  if (sizes.back() != sizes.front()) reader.reject(key, "only squares are built");
  return sizes.front();
}

bool read_norm_type(const ConfigReader& reader) {
  const std::string type = reader.text("norm_type", "layer_norm");
  if (type != "layer_norm" && type != "rms_norm") reader.reject("norm_type", "known are layer_norm, rms_norm");
  return type == "rms_norm";
}

constexpr std::array<SizeLimit, 5> kVisionLimits{{{"hidden_size", 1 << 20},
                                                  {"num_hidden_layers", 4096},
                                                  {"num_attention_heads", 1 << 16},
                                                  {"intermediate_size", 1 << 24},
                                                  {"num_channels", 1 << 10}}};

void check_vision(const ConfigReader& reader, const InternVLVisionConfig& config) {
  if (config.hidden_size % config.num_attention_heads != 0) {
    reader.reject("hidden_size", "it must be a multiple of num_attention_heads ({})", config.num_attention_heads);
  }
  if (config.image_size % config.patch_size != 0) {
    reader.reject("image_size", "it must be a multiple of patch_size ({})", config.patch_size);
  }
  const std::string of_hidden = fmt::format("hidden_size {}", config.hidden_size);
  check_weight(reader, "intermediate_size", config.intermediate_size, config.hidden_size, of_hidden);
  check_weight(reader, "image_size", config.grid() * config.grid(), config.hidden_size, of_hidden);
  check_weight(reader, "patch_size", config.patch_size * config.patch_size, config.num_channels * config.hidden_size,
               fmt::format("{} channels and {}", config.num_channels, of_hidden));
}

void read_vision_numbers(const ConfigReader& reader, InternVLVisionConfig& config) {
  config.hidden_size = reader.count("hidden_size", config.hidden_size);
  config.num_hidden_layers = reader.count("num_hidden_layers", config.num_hidden_layers);
  config.num_attention_heads = reader.count("num_attention_heads", config.num_attention_heads);
  config.intermediate_size = reader.count("intermediate_size", config.intermediate_size);
  config.image_size = read_side(reader, "image_size", config.image_size);
  config.patch_size = read_side(reader, "patch_size", config.patch_size);
  config.num_channels = reader.count("num_channels", config.num_channels);
  config.layer_norm_eps = reader.positive("layer_norm_eps", config.layer_norm_eps);
  config.layer_scale_init_value = reader.number("layer_scale_init_value").value_or(config.layer_scale_init_value);
  config.initializer_range = reader.positive("initializer_range", config.initializer_range);
}

InternVLVisionConfig read_vision(const ConfigReader& reader) {
  InternVLVisionConfig config;
  only_text(reader, "model_type", "internvl_vision");
  check_sizes(reader, kVisionLimits);
  read_vision_numbers(reader, config);
  config.rms_norm = read_norm_type(reader);
  config.attention_bias = reader.flag("attention_bias", config.attention_bias);
  config.use_qk_norm = reader.flag("use_qk_norm", config.use_qk_norm);
  config.use_absolute_position_embeddings =
      reader.flag("use_absolute_position_embeddings", config.use_absolute_position_embeddings);
  config.use_mean_pooling = reader.flag("use_mean_pooling", config.use_mean_pooling);
  config.freeze = reader.flag("freeze", config.freeze);
  only_text(reader, "hidden_act", "gelu");
  only_flag(reader, "use_mask_token", false);
  for (const char* key : {"hidden_dropout_prob", "attention_dropout", "projection_dropout"}) no_dropout(reader, key);
  check_vision(reader, config);
  if (reader.strict()) reader.refuse_unread();
  return config;
}

std::int64_t read_downsample_factor(const ConfigReader& reader, const InternVLVisionConfig& vision) {
  constexpr std::string_view kKey = "downsample_ratio";
  const double inverse = 1.0 / reader.positive(kKey, 0.5);
  const auto factor = static_cast<std::int64_t>(std::llround(inverse));
  if (factor < 1 || std::abs(inverse - static_cast<double>(factor)) > 1e-6) {
    reader.reject(kKey, "only 1 divided by a whole number is built");
  }
  if (vision.grid() % factor != 0) {
    reader.reject(kKey, "the {} x {} patches of an image cannot be joined in squares of {}", vision.grid(),
                  vision.grid(), factor);
  }
  return factor;
}

ConfigReader section(const ConfigReader& reader, std::string_view key) {
  auto nested = reader.mapping(key);
  if (!nested) reader.reject(key, "the model needs this section");
  return *std::move(nested);
}

DecoderConfig read_text(const ConfigReader& reader) {
  const DecoderConfig config = read_decoder_config(reader);
  if (config.family == DecoderFamily::kGpt2) reader.reject("model_type", "a decoder with rotary positions is expected");
  if (config.moe && config.moe->has_router_loss()) {
    reader.reject("output_router_logits",
                  "the routers' load-balancing loss is built for models of text alone; set it to false");
  }
  return config;
}

Json vision_json(const InternVLVisionConfig& config) {
  Json json;
  json["model_type"] = "internvl_vision";
  json["hidden_size"] = config.hidden_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["intermediate_size"] = config.intermediate_size;
  json["image_size"] = {config.image_size, config.image_size};
  json["patch_size"] = {config.patch_size, config.patch_size};
  json["num_channels"] = config.num_channels;
  json["layer_norm_eps"] = config.layer_norm_eps;
  json["layer_scale_init_value"] = config.layer_scale_init_value;
  json["initializer_range"] = config.initializer_range;
  json["norm_type"] = config.rms_norm ? "rms_norm" : "layer_norm";
  json["attention_bias"] = config.attention_bias;
  json["use_qk_norm"] = config.use_qk_norm;
  json["use_absolute_position_embeddings"] = config.use_absolute_position_embeddings;
  json["use_mean_pooling"] = config.use_mean_pooling;
  json["use_mask_token"] = false;
  json["hidden_act"] = "gelu";
  for (const char* key : {"hidden_dropout_prob", "attention_dropout", "projection_dropout"}) json[key] = 0.0;
  if (config.freeze) json["freeze"] = true;
  return json;
}

}  // namespace

InternVLConfig read_internvl_config(const ConfigReader& reader) {
  InternVLConfig config;
  if (reader.text("model_type") != "internvl") reader.reject("model_type", "internvl is expected");
  config.vision = read_vision(section(reader, "vision_config"));
  const ConfigReader text = section(reader, "text_config");
  config.freeze_text = text.flag("freeze", false);
  config.text = read_text(text);
  config.text.tie_word_embeddings = reader.flag("tie_word_embeddings", config.text.tie_word_embeddings);
  config.downsample_factor = read_downsample_factor(reader, config.vision);
  config.image_seq_length = reader.count("image_seq_length", config.image_seq_length);
  config.image_token_id = reader.integer("image_token_id").value_or(config.image_token_id);
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size) {
    reader.reject("image_token_id", "ids go from 0 to {} (text_config.vocab_size is {})", config.text.vocab_size - 1,
                  config.text.vocab_size);
  }
  if (reader.integer("vision_feature_layer").value_or(-1) != -1) {
    reader.reject("vision_feature_layer", "only -1, the last layer, is built");
  }
  only_text(reader, "vision_feature_select_strategy", "default");
  only_text(reader, "projector_hidden_act", "gelu");
  if (reader.strict()) reader.refuse_unread();
  return config;
}

bool is_internvl(const std::filesystem::path& path) {
  return ConfigReader::load(path).text("model_type", "") == "internvl";
}

InternVLConfig load_internvl_config(const std::filesystem::path& path) {
  return read_internvl_config(ConfigReader::load(path));
}

InternVLConfig parse_internvl_json(std::string_view text, std::string_view file_name) {
  return read_internvl_config(ConfigReader::from_json(text, file_name));
}

InternVLConfig parse_internvl_yaml(std::string_view text, std::string_view file_name) {
  return read_internvl_config(ConfigReader::from_yaml(text, file_name));
}

std::string to_json(const InternVLConfig& config) {
  Json json;
  json["architectures"] = {"InternVLForConditionalGeneration"};
  json["model_type"] = "internvl";
  json["vision_config"] = vision_json(config.vision);
  json["text_config"] = decoder_json(config.text);
  if (config.freeze_text) json["text_config"]["freeze"] = true;
  json["tie_word_embeddings"] = config.text.tie_word_embeddings;
  json["image_token_id"] = config.image_token_id;
  json["image_seq_length"] = config.image_seq_length;
  json["downsample_ratio"] = 1.0 / static_cast<double>(config.downsample_factor);
  json["projector_hidden_act"] = "gelu";
  json["vision_feature_layer"] = -1;
  json["vision_feature_select_strategy"] = "default";
  return json.dump(2) + "\n";
}

}  // namespace loom::models
