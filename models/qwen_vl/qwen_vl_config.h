// QwenVlConfig: the shape of a Qwen2-VL, Qwen2.5-VL or Qwen3-VL model, from Hugging Face's config.json (transformers 4
// and 5) or a models YAML with the same keys.
//
// Sections  vision_config, text_config; in older files the text's keys are beside vision_config.
// Freeze    `freeze: true` in a section freezes that tower when the model is built; ours, not transformers'.
// Ties      tie_word_embeddings beside the sections decides; if it is absent, the text's.
// Defaults  from transformers' configuration classes.
// Errors    ConfigError as for DecoderConfig: file, key (dotted inside a section), value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/decoder_config.h"

namespace loom::models {

class ConfigReader;

enum class QwenVlVersion : std::uint8_t { k2, k2_5, k3 };
// "qwen2_vl", "qwen2_5_vl", "qwen3_vl".
std::string_view model_type(QwenVlVersion version);
// "Qwen2VLForConditionalGeneration", ...
std::string_view architecture(QwenVlVersion version);

struct QwenVisionConfig {
  QwenVlVersion version = QwenVlVersion::k2;
  std::int64_t depth = 32;
  std::int64_t hidden_size = 1280;        // of the tower; in files of Qwen2-VL embed_dim
  std::int64_t num_heads = 16;            // divides hidden_size
  std::int64_t intermediate_size = 5120;  // Qwen2-VL: hidden_size * mlp_ratio
  std::int64_t out_hidden_size = 3584;    // of the text; in files of Qwen2-VL hidden_size
  std::int64_t in_channels = 3;
  std::int64_t patch_size = 14;
  std::int64_t spatial_merge_size = 2;  // patches of a side of what becomes a token
  std::int64_t temporal_patch_size = 2;
  double initializer_range = 0.02;
  bool freeze = false;
  // Qwen2.5-VL
  std::int64_t window_size = 112;                                  // pixels of a side
  std::vector<std::int64_t> fullatt_block_indexes{7, 15, 23, 31};  // whose attention sees the whole picture
  std::int64_t tokens_per_second = 4;                              // positions of a second of video
  // Qwen3-VL
  std::vector<std::int64_t> deepstack_visual_indexes{8, 16, 24};  // whose results are added to the first text layers
  std::int64_t num_position_embeddings = 2304;                    // a square

  // Numbers of a patch, and patches of a token.
  std::int64_t patch_values() const { return in_channels * temporal_patch_size * patch_size * patch_size; }
  std::int64_t merged() const { return spatial_merge_size * spatial_merge_size; }
  bool operator==(const QwenVisionConfig&) const = default;
};

struct QwenVlConfig {
  QwenVlVersion version = QwenVlVersion::k2;
  QwenVisionConfig vision;
  DecoderConfig text;
  bool freeze_text = false;
  std::int64_t image_token_id = 151655;
  std::int64_t video_token_id = 151656;
  std::int64_t vision_start_token_id = 151652;
  std::int64_t vision_end_token_id = 151653;

  bool operator==(const QwenVlConfig&) const = default;
};

QwenVlConfig read_qwen_vl_config(const ConfigReader& reader);
QwenVlConfig load_qwen_vl_config(const std::filesystem::path& path);
// Whether the file has the model_type of one.
bool is_qwen_vl(const std::filesystem::path& path);
bool is_qwen_vl(const ConfigReader& reader);

// A config.json for transformers; parses back to an equal config.
std::string to_json(const QwenVlConfig& config);

}  // namespace loom::models
