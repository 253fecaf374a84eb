#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/images/patches.h"
#include "engine/images/processor_config.h"
#include "engine/images/read_image.h"
#include "engine/talk/picture_model.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::talk {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlaceholder = "<|vision_start|><|image_pad|><|vision_end|>";

class QwenVlPictures final : public PictureModel {
 public:
  QwenVlPictures(const fs::path& folder, const Words& words, const models::QwenVlConfig& config)
      : PictureModel(folder, words, config.image_token_id),
        config_(config),
        processor_(images::read_patch_options(
            folder, "the model is a Qwen-VL, which needs its own; copy the file of the published model")) {
    const std::int64_t values = 3 * processor_.temporal_patch_size * processor_.patch_size * processor_.patch_size;
    if (values == config_.vision.patch_values()) return;
    config_error(
        "{}: patches of {} values do not fit the model's {} (patch_size, temporal_patch_size); use the file of "
        "the same model",
        escaped((folder / "preprocessor_config.json").string()), values, config_.vision.patch_values());
  }

  Picture read(const fs::path& file) const override {
    images::Patches patches = images::patches_of(images::read_image(file), processor_);
    const std::int64_t width = config_.vision.patch_values();
    const std::int64_t rows = std::ssize(patches.values) / width;
    return {std::move(patches.values),
            {rows, width},
            {patches.grid.t, patches.grid.h, patches.grid.w},
            images::tokens_of(patches.grid, processor_.merge_size)};
  }

  std::string prompt(std::size_t pictures, const std::string& question) const override {
    if (auto text = by_template(pictures, question)) return *std::move(text);
    std::string text;
    if (config_.version != models::QwenVlVersion::k3) {
      text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n";
    }
    text += "<|im_start|>user\n";
    for (std::size_t i = 0; i < pictures; ++i) text += kPlaceholder;
    return text + question + "<|im_end|>\n<|im_start|>assistant\n";
  }

  nn::ValueDict inputs(std::span<const Picture> pictures) const override {
    nn::ValueDict inputs = PictureModel::inputs(pictures);
    if (pictures.empty()) return inputs;
    std::vector<models::VisionGrid> grids;
    for (const Picture& picture : pictures) grids.push_back(picture.grid);
    inputs.emplace_back("image_grid_thw", models::to_value(grids));
    return inputs;
  }

 private:
  const models::QwenVlConfig config_;
  const images::PatchOptions processor_;
};

}  // namespace

std::unique_ptr<PictureModel> qwen_vl_pictures(const fs::path& folder, const Words& words) {
  return std::make_unique<QwenVlPictures>(folder, words, models::load_qwen_vl_config(folder));
}

}  // namespace loom::talk
