#include <array>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/images/processor_config.h"
#include "engine/images/read_image.h"
#include "engine/images/tiles.h"
#include "engine/talk/picture_model.h"
#include "models/internvl/internvl_config.h"

namespace loom::talk {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kStart = "<img>", kContext = "<IMG_CONTEXT>", kEnd = "</img>";

// The turns of OpenGVLab's code.
struct TurnsOf {
  std::string_view name;
  std::string_view system;
  std::string_view turn_end;
};
constexpr std::array<TurnsOf, 2> kTurns{
    {{"internvl2_5",
      "你是书生·万象，英文名是InternVL，"
      "是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。",
      "<|im_end|>\n"},
     {"Hermes-2",
      "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, "
      "是一个有用无害的人工智能助手。",
      "<|im_end|>"}}};

const TurnsOf& turns_of(const fs::path& folder, const models::InternVLConfig& config) {
  const std::string name = config.chat ? config.chat->prompt_template : std::string(kTurns.front().name);
  for (const TurnsOf& turns : kTurns) {
    if (turns.name == name) return turns;
  }
  config_error("{}: template is {}, whose turns are not built for questions about pictures; built are {} and {}",
               escaped((folder / "config.json").string()), shown_text(name), kTurns[0].name, kTurns[1].name);
}

class InternVLPictures final : public PictureModel {
 public:
  InternVLPictures(const fs::path& folder, const Words& words, const models::InternVLConfig& config)
      : PictureModel(folder, words, config.image_token_id),
        config_(config),
        processor_(images::read_tile_processor(
            folder, "the model is an InternVL, which reads tiles; copy the file of the published model")),
        tiles_(tiles_of_model()),
        turns_(turns_of(folder, config)) {
    check_size();
    check_tokens();
  }

  Picture read(const fs::path& file) const override {
    const std::vector<images::Image> tiles = images::tiles_of(images::read_image(file), tiles_);
    const std::int64_t side = tiles_.image_size, count = std::ssize(tiles);
    return {images::tile_values(tiles, processor_.mean, processor_.std),
            {count, config_.vision.num_channels, side, side},
            {},
            count * config_.image_tokens(side)};
  }

  // Templates of OpenGVLab's folders know texts alone.
  Json content(std::size_t pictures, const std::string& text) const override {
    if (!config_.chat) return PictureModel::content(pictures, text);
    return places(pictures) + text;
  }

  std::string prompt(std::size_t pictures, const std::string& question) const override {
    if (!config_.chat) {
      if (auto text = by_template(pictures, question)) return *std::move(text);
    }
    return fmt::format("<|im_start|>system\n{}{}<|im_start|>user\n{}{}{}<|im_start|>assistant\n", turns_.system,
                       turns_.turn_end, places(pictures), question, turns_.turn_end);
  }

 private:
  static std::string places(std::size_t pictures) {
    std::string text;
    for (std::size_t i = 0; i < pictures; ++i) text.append(kContext).append("\n");
    return text;
  }

  // The tokens around the features, which no template writes.
  std::string with_marks(std::string text) const override {
    for (std::size_t at = 0; (at = text.find(kContext, at)) != std::string::npos; at += kContext.size() + kEnd.size()) {
      text.insert(at + kContext.size(), kEnd);
      text.insert(at, kStart);
      at += kStart.size();
    }
    return text;
  }

  images::TileOptions tiles_of_model() const {
    if (!config_.chat) return *processor_.tiles();
    return images::tile_options({.dynamic_image_size = config_.chat->dynamic_image_size,
                                 .use_thumbnail = config_.chat->use_thumbnail,
                                 .min_dynamic_patch = config_.chat->min_dynamic_patch,
                                 .max_dynamic_patch = config_.chat->max_dynamic_patch},
                                config_.image_size(), processor_.tiles()->filter);
  }

  void check_size() const {
    if (config_.vision.num_channels != 3) {
      config_error("{}: vision_config.num_channels is {}, and pictures have 3", config_json(),
                   config_.vision.num_channels);
    }
    if (tiles_.image_size % config_.image_unit() == 0) return;
    config_error(
        "{}: tiles have sides of {} pixels, and the model takes multiples of {} (patch_size {}, {} of a side a "
        "token); change size of the picture processor{}",
        escaped(folder_.string()), tiles_.image_size, config_.image_unit(), config_.vision.patch_size,
        config_.downsample_factor, config_.chat ? " and force_image_size of config.json" : "");
  }

  void check_tokens() const {
    const data::Tokenizer* tokenizer = words_.tokenizer();
    if (tokenizer == nullptr) {
      config_error(
          "{}: pictures need the tokens {}, {} and {}, and there is no tokenizer.json; copy that of the "
          "published model",
          escaped(folder_.string()), kStart, kContext, kEnd);
    }
    for (const std::string_view token : {kStart, kContext, kEnd}) {
      if (tokenizer->find(token)) continue;
      config_error("{}: the tokenizer has no token {}, which pictures need; use the files of one model",
                   escaped(folder_.string()), token);
    }
    if (const auto id = *tokenizer->find(kContext); id != config_.image_token_id) {
      config_error("{}: image_token_id is {}, and the tokenizer has {} as {}; write image_token_id: {}", config_json(),
                   config_.image_token_id, kContext, id, id);
    }
  }

  std::string config_json() const { return escaped((folder_ / "config.json").string()); }

  const models::InternVLConfig config_;
  const images::ImageProcessor processor_;
  const images::TileOptions tiles_;
  const TurnsOf& turns_;
};

}  // namespace

std::unique_ptr<PictureModel> internvl_pictures(const fs::path& folder, const Words& words) {
  return std::make_unique<InternVLPictures>(folder, words, models::load_internvl_config(folder));
}

}  // namespace loom::talk
