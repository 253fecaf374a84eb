#include "engine/multimodal/image_reader.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/images/patches.h"
#include "engine/images/preclamp.h"
#include "engine/images/processor_config.h"
#include "engine/images/read_image.h"
#include "engine/images/tiles.h"

namespace loom::multimodal {
namespace {

images::Image white_image(std::int64_t width, std::int64_t height) {
  return {width, height, std::vector<std::uint8_t>(static_cast<std::size_t>(3 * width * height), 255)};
}

class QwenReader final : public PictureReader {
 public:
  explicit QwenReader(const DataConfig& config)
      : options_(
            images::read_patch_options(config.pictures.model_name_or_path,
                                       "dataset_type huggingface needs Qwen-VL's; write dataset_type multimodal, or "
                                       "give a Qwen-VL folder")),
        image_limits_{.max_pixels = config.pictures.image_max_pixels, .min_pixels = config.pictures.image_min_pixels},
        video_limits_{.max_pixels = config.pictures.video_max_pixels, .min_pixels = config.pictures.video_min_pixels} {}

  Grid size_of(const std::filesystem::path& picture, std::int64_t) const override {
    return grid_of(picture, image_limits_);
  }
  Patches read(const std::filesystem::path& picture, std::int64_t) const override {
    return images::patches_of(images::preclamp(images::read_image(picture), image_limits_), options_);
  }
  // All frames have the first one's grid, and one of two frames.
  Grid size_of_video(std::span<const std::filesystem::path> frames) const override {
    const Grid grid = grid_of(frames.front(), video_limits_);
    const std::int64_t pair = options_.temporal_patch_size;
    return {(std::ssize(frames) + pair - 1) / pair, grid.h, grid.w};
  }
  Patches read_video(std::span<const std::filesystem::path> frames) const override {
    std::vector<images::Image> pictures;
    for (const auto& frame : frames) {
      pictures.push_back(images::preclamp(images::read_image(frame), video_limits_));
    }
    return images::patches_of_video(pictures, options_);
  }
  Patches white(std::int64_t width, std::int64_t height) const override {
    return images::patches_of(images::preclamp(white_image(width, height), image_limits_), options_);
  }
  std::vector<std::int64_t> row_shape() const override {
    return {3 * options_.temporal_patch_size * options_.patch_size * options_.patch_size};
  }
  std::int64_t merge_size() const override { return options_.merge_size; }

 private:
  Grid grid_of(const std::filesystem::path& picture, const images::PreclampOptions& limits) const {
    return images::grid_of(images::preclamped_size(images::read_image_size(picture), limits), options_);
  }

  const images::PatchOptions options_;
  const images::PreclampOptions image_limits_;
  const images::PreclampOptions video_limits_;
};

class InternvlReader final : public PictureReader {
 public:
  explicit InternvlReader(const DataConfig& config) : options_(config.internvl) {
    for (std::size_t i = 0; i < 3; ++i) {
      mean_[i] = static_cast<float>(options_.mean[i]);
      std_[i] = static_cast<float>(options_.std[i]);
    }
    images::tile_tokens(options_.image_size, options_.patch_size, options_.down_sample_ratio);
  }

  Grid size_of(const std::filesystem::path& picture, std::int64_t pictures) const override {
    images::ImageSize size = images::read_image_size(picture);
    if (options_.pad_to_square) size.width = size.height = std::max(size.width, size.height);
    return grid(images::tile_count(size, tiles(pictures)));
  }
  Patches read(const std::filesystem::path& picture, std::int64_t pictures) const override {
    return patches(images::read_image(picture), tiles(pictures));
  }
  Grid size_of_video(std::span<const std::filesystem::path>) const override { refuse_video(); }
  Patches read_video(std::span<const std::filesystem::path>) const override { refuse_video(); }
  Patches white(std::int64_t width, std::int64_t height) const override {
    return patches(white_image(width, height), tiles(1));
  }
  std::vector<std::int64_t> row_shape() const override { return {3, options_.image_size, options_.image_size}; }
  std::int64_t merge_size() const override {
    return static_cast<std::int64_t>(std::llround(1 / options_.down_sample_ratio));
  }

 private:
  [[noreturn]] static void refuse_video() {
    config_error("videos of dataset_type multimodal are not built; take the sample out, or give pictures");
  }

  images::TileOptions tiles(std::int64_t pictures) const {
    const std::int64_t most =
        std::max<std::int64_t>(1, options_.max_dynamic_patch / std::max<std::int64_t>(1, pictures));
    return images::tile_options({.dynamic_image_size = options_.dynamic_image_size,
                                 .use_thumbnail = options_.use_thumbnail,
                                 .min_dynamic_patch = options_.min_dynamic_patch,
                                 .max_dynamic_patch = most},
                                options_.image_size);
  }

  Grid grid(std::int64_t tiles) const {
    const std::int64_t side = options_.image_size / options_.patch_size;
    return {tiles, side, side};
  }

  Patches patches(images::Image image, const images::TileOptions& tiles) const {
    if (options_.pad_to_square) image = images::pad_to_square(image, images::pad_color(mean_));
    const std::vector<images::Image> cut = images::tiles_of(image, tiles);
    return {grid(std::ssize(cut)), images::tile_values(cut, mean_, std_)};
  }

  const InternvlOptions options_;
  images::Channels mean_{}, std_{};
};

}  // namespace

std::shared_ptr<const PictureReader> make_image_reader(const DataConfig& config) {
  if (config.type == DatasetType::kMultimodal) return std::make_shared<InternvlReader>(config);
  return std::make_shared<QwenReader>(config);
}

}  // namespace loom::multimodal
