// InternVLConfig: the shape of an InternVL model (vision tower, pixel-shuffle projector, decoder), from Hugging Face's
// config.json (transformers 4 and 5) or a models YAML with the same keys.
//
// Sections  vision_config, text_config (any decoder but GPT-2) and the keys beside them.
// Freeze    `freeze: true` in a section freezes that tower when the model is built; ours, not transformers'.
// Ties      tie_word_embeddings beside the sections decides; if it is absent, text_config's.
// Defaults  from transformers' InternVLVisionConfig and InternVLConfig.
// Errors    ConfigError as for DecoderConfig: file, key (dotted inside a section), value; also for values that would
//           change the arithmetic and are not built (dropout, mask tokens, images that are not square, features of
//           another layer).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "models/decoder/decoder_config.h"

namespace loom::models {

class ConfigReader;

struct InternVLVisionConfig {
  std::int64_t hidden_size = 1024;
  std::int64_t num_hidden_layers = 24;
  std::int64_t num_attention_heads = 16;  // divides hidden_size
  std::int64_t intermediate_size = 4096;
  std::int64_t image_size = 448;  // pixels of a side
  std::int64_t patch_size = 14;   // divides image_size
  std::int64_t num_channels = 3;
  double layer_norm_eps = 1e-6;
  double layer_scale_init_value = 0.1;
  double initializer_range = 0.02;
  bool rms_norm = false;  // norm_type: layer_norm or rms_norm
  bool attention_bias = false;
  bool use_qk_norm = false;
  bool use_absolute_position_embeddings = true;
  bool use_mean_pooling = true;  // false: a LayerNorm after the last layer
  bool freeze = false;

  // Patches of a side of an image.
  std::int64_t grid() const { return image_size / patch_size; }
  bool operator==(const InternVLVisionConfig&) const = default;
};

struct InternVLConfig {
  InternVLVisionConfig vision;
  DecoderConfig text;
  bool freeze_text = false;
  std::int64_t image_token_id = 151667;
  std::int64_t downsample_factor = 2;   // 1 / downsample_ratio; divides vision.grid()
  std::int64_t image_seq_length = 256;  // for processors; the model counts image_tokens() itself

  // The number of tokens of one image.
  std::int64_t image_tokens() const {
    const std::int64_t side = vision.grid() / downsample_factor;
    return side * side;
  }
  bool operator==(const InternVLConfig&) const = default;
};

// Whether the file has model_type: internvl. Reads a folder's config.json, a .json, or a .yaml/.yml file.
bool is_internvl(const std::filesystem::path& path);
InternVLConfig load_internvl_config(const std::filesystem::path& path);
// The same from text; `file_name` is its name in messages.
InternVLConfig parse_internvl_json(std::string_view text, std::string_view file_name);
InternVLConfig parse_internvl_yaml(std::string_view text, std::string_view file_name);

// The same from an open file.
InternVLConfig read_internvl_config(const ConfigReader& reader);

// A config.json for transformers; parses back to an equal config.
std::string to_json(const InternVLConfig& config);

}  // namespace loom::models
