#include "models/internvl/internvl_config.h"

#include "models/decoder/decoder_families.h"
#include "models/hub/built_values.h"
#include "models/internvl/config_parts.h"

namespace loom::models {
namespace {

using Json = nlohmann::ordered_json;

InternVLVisionConfig read_vision(const ConfigReader& reader) {
  InternVLVisionConfig config;
  only_text(reader, "model_type", "internvl_vision");
  read_vision_sizes(reader, config);
  config.layer_scale_init_value = reader.number("layer_scale_init_value").value_or(config.layer_scale_init_value);
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
  if (is_internvl_chat(reader)) return read_internvl_chat_config(reader);
  InternVLConfig config;
  if (reader.text("model_type") != "internvl") reader.reject("model_type", "internvl is expected");
  config.vision = read_vision(section(reader, "vision_config"));
  read_text(section(reader, "text_config"), config);
  config.text.tie_word_embeddings = reader.flag("tie_word_embeddings", config.text.tie_word_embeddings);
  read_downsample_factor(reader, config);
  config.image_seq_length = reader.count("image_seq_length", config.image_seq_length);
  read_image_token_id(reader, "text_config", config.image_token_id, config);
  if (reader.integer("vision_feature_layer").value_or(-1) != -1) {
    reader.reject("vision_feature_layer", "only -1, the last layer, is built");
  }
  only_text(reader, "vision_feature_select_strategy", "default");
  only_text(reader, "projector_hidden_act", "gelu");
  if (reader.strict()) reader.refuse_unread();
  return config;
}

bool is_internvl(const ConfigReader& reader) {
  return reader.text("model_type", "") == "internvl" || is_internvl_chat(reader);
}
bool is_internvl(const std::filesystem::path& path) { return is_internvl(ConfigReader::load(path)); }

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
  if (config.chat) return internvl_chat_json(config);
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
