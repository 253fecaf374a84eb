// The parts of InternVL's configurations that both layouts have. Private to models/internvl.
#pragma once

#include <string_view>

#include "models/hub/config_reader.h"
#include "models/internvl/internvl_config.h"

namespace loom::models {

// A section that the model needs.
ConfigReader section(const ConfigReader& reader, std::string_view key);

// Refuse other values.
void only_flag(const ConfigReader& reader, std::string_view key, bool built);
void no_dropout(const ConfigReader& reader, std::string_view key);

// Sizes, norm_type, eps and initializer_range, with the values in `config` for the keys that are absent.
void read_vision_sizes(const ConfigReader& reader, InternVLVisionConfig& config);
// Once all of it is read.
void check_vision(const ConfigReader& reader, const InternVLVisionConfig& config);
// Pixels of a side: one number, or two equal ones.
std::int64_t read_side(const ConfigReader& reader, std::string_view key, std::int64_t fallback);

// The decoder's section, with `freeze`.
void read_text(const ConfigReader& reader, InternVLConfig& config);
// downsample_ratio, once the vision tower and the size of images are known.
void read_downsample_factor(const ConfigReader& reader, InternVLConfig& config);
// image_token_id: an id of the vocabulary, or `fallback`.
void read_image_token_id(const ConfigReader& reader, std::string_view text_section, std::int64_t fallback,
                         InternVLConfig& config);

// OpenGVLab's layout.
bool is_internvl_chat(const ConfigReader& reader);
InternVLConfig read_internvl_chat_config(const ConfigReader& reader);
std::string internvl_chat_json(const InternVLConfig& config);

}  // namespace loom::models
