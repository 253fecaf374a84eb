// PictureModel: how a model that reads pictures is asked about them. Private to engine/talk.
//
// Text     a user's message has its pictures, then the text; rendered by a chat template or as the family's own turns.
// Tokens   each picture's place in the text becomes as many placeholders as the picture has features.
// Threads  const after construction: safe from any number of threads.
// Errors   ConfigError: a picture that cannot be read, a folder whose files do not fit the model, a template without
//          place for the pictures.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/value.h"
#include "engine/talk/words.h"
#include "models/qwen_vl/vision_grid.h"

namespace loom::talk {

struct Picture {
  std::vector<float> values;
  std::vector<std::int64_t> shape;  // of its rows of pixel_values
  models::VisionGrid grid{};        // Qwen-VL: in patches
  std::int64_t tokens = 0;          // its features
};

class PictureModel {
 public:
  virtual ~PictureModel() = default;

  virtual Picture read(const std::filesystem::path& file) const = 0;
  // The content of a user's message for the folder's chat template.
  virtual nlohmann::ordered_json content(std::size_t pictures, const std::string& text) const;
  // The prompt of one question.
  virtual std::string prompt(std::size_t pictures, const std::string& question) const = 0;
  // Of a text with a place for each picture.
  Tokens ids(const std::string& text, std::span<const Picture> pictures) const;
  // What the model is called with beside the tokens.
  virtual nn::ValueDict inputs(std::span<const Picture> pictures) const;

 protected:
  // Both outlive it. `placeholder`: the token that a picture's features replace.
  PictureModel(std::filesystem::path folder, const Words& words, std::int64_t placeholder);

  // A question in the folder's chat template, if it has one.
  std::optional<std::string> by_template(std::size_t pictures, const std::string& question) const;
  // A rendered text with the tokens around each picture's place.
  virtual std::string with_marks(std::string text) const { return text; }

  const std::filesystem::path folder_;
  const Words& words_;
  const std::int32_t placeholder_;
};

// Of a folder with a Qwen-VL or an InternVL. ConfigError for another model, and in a program without LOOM_IMAGES.
std::unique_ptr<PictureModel> picture_model(const std::filesystem::path& folder, const Words& words);

// The families.
std::unique_ptr<PictureModel> qwen_vl_pictures(const std::filesystem::path& folder, const Words& words);
std::unique_ptr<PictureModel> internvl_pictures(const std::filesystem::path& folder, const Words& words);

}  // namespace loom::talk
