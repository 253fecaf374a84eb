// A question about pictures as the prompt of a Qwen-VL or InternVL model. Private to engine/talk.
//
// Qwen-VL    the template of the model's folder: one user turn, whose content is the pictures, then the question.
//            Without one the published turns: Qwen2-VL and Qwen2.5-VL with their default system turn, Qwen3-VL without.
// InternVL   tiles by the folder's picture processor. The folder's template, or without one the turns of internvl2_5.
//            InternVLChatModel: tiles and turns (`template`) by its config.json.
// Tokens     each picture's placeholder becomes as many as the picture has features; InternVL's are between <img> and
//            </img>.
// Errors     ConfigError: a model that takes no pictures, a picture that cannot be read, a template without place for
//            them; a program that is built without LOOM_IMAGES.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/nn/value.h"
#include "engine/talk/words.h"

namespace loom::talk {

struct PicturePrompt {
  Tokens ids;
  nn::ValueDict inputs;  // pixel_values, and image_grid_thw of Qwen-VL (models/qwen_vl/qwen_vl.h)
};

PicturePrompt picture_prompt(const std::filesystem::path& model_dir, const std::vector<std::filesystem::path>& pictures,
                             const std::string& question, const Words& words);

}  // namespace loom::talk
