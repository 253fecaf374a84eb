// InternVLConfig: the shape of an InternVL model (vision tower, pixel-shuffle projector, decoder), from Hugging Face's
// config.json (transformers 4 and 5), from the config.json of OpenGVLab's own InternVLChatModel (InternVL2, 2.5 and 3),
// or from a models YAML with the same keys.
//
// Sections   vision_config, text_config (InternVLChatModel: llm_config; any decoder but GPT-2) and the keys beside
//            them.
// Freeze     `freeze: true` in a section freezes that tower when the model is built; ours, not transformers'.
// Ties       tie_word_embeddings beside the sections decides; if it is absent, that of the decoder's section.
// Defaults   from transformers' InternVLVisionConfig and InternVLConfig, or InternVLChatModel's own.
// ChatModel  its layers are those of transformers' model. image_token_id, which it takes from the tokenizer, is a key
//            of ours; without it the seventh id from the end, where the published models have <IMG_CONTEXT>.
//            drop_path_rate is not applied: no layer is skipped, as in transformers.
// Errors     ConfigError as for DecoderConfig: file, key (dotted inside a section), value; also for values that would
//            change the arithmetic and are not built (dropout, mask tokens, images that are not square, features of
//            another layer).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
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
  std::int64_t image_size = 448;  // pixels of a side of an image with a position for each patch
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

  // Patches of a side of such an image.
  std::int64_t grid() const { return image_size / patch_size; }
  bool operator==(const InternVLVisionConfig&) const = default;
};

// What InternVLChatModel's configuration has about pictures and prompts; transformers keeps it in other files.
struct InternVLChatOptions {
  std::int64_t force_image_size = 0;  // pixels of a side of a tile; 0: the vision tower's image_size
  bool dynamic_image_size = false;    // several tiles a picture
  bool use_thumbnail = false;
  std::int64_t min_dynamic_patch = 1;  // tiles of a picture
  std::int64_t max_dynamic_patch = 6;
  std::string prompt_template = "internvl2_5";  // `template`: the name of the turns

  bool operator==(const InternVLChatOptions&) const = default;
};

struct InternVLConfig {
  InternVLVisionConfig vision;
  DecoderConfig text;
  bool freeze_text = false;
  std::int64_t image_token_id = 151667;
  std::int64_t downsample_factor = 2;       // 1 / downsample_ratio
  std::int64_t image_seq_length = 256;      // for processors; the model counts image_tokens() itself
  std::optional<InternVLChatOptions> chat;  // of an InternVLChatModel

  // Pixels of a side of an image, unless a processor says otherwise.
  std::int64_t image_size() const {
    return chat && chat->force_image_size > 0 ? chat->force_image_size : vision.image_size;
  }
  // The sides of an image are multiples of this.
  std::int64_t image_unit() const { return vision.patch_size * downsample_factor; }
  // The number of tokens of one image with sides of so many pixels.
  std::int64_t image_tokens(std::int64_t side) const { return (side / image_unit()) * (side / image_unit()); }
  std::int64_t image_tokens() const { return image_tokens(image_size()); }
  bool operator==(const InternVLConfig&) const = default;
};

// Whether the file is one of the two: model_type internvl, or OpenGVLab's. Reads a folder's config.json, a .json, or a
// .yaml/.yml file.
bool is_internvl(const std::filesystem::path& path);
bool is_internvl(const ConfigReader& reader);
InternVLConfig load_internvl_config(const std::filesystem::path& path);
// The same from text; `file_name` is its name in messages.
InternVLConfig parse_internvl_json(std::string_view text, std::string_view file_name);
InternVLConfig parse_internvl_yaml(std::string_view text, std::string_view file_name);

// The same from an open file.
InternVLConfig read_internvl_config(const ConfigReader& reader);

// A config.json for transformers or for InternVLChatModel; parses back to an equal config.
std::string to_json(const InternVLConfig& config);

}  // namespace loom::models
