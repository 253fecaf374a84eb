#include "engine/cli/picture_data.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/images/patches.h"
#include "engine/images/processor_config.h"
#include "engine/images/tiles.h"
#include "engine/multimodal/image_reader.h"
#include "engine/multimodal/multimodal_data.h"
#include "models/hub/config_reader.h"
#include "models/hub/model_source.h"
#include "models/internvl/internvl_config.h"
#include "models/qwen_vl/qwen_vl_config.h"
#include "models/qwen_vl/vision_grid.h"

namespace loom::cli {
namespace {

using multimodal::DatasetType;

// The dataset_type that the model takes.
void check_model(const multimodal::DataConfig& config, const models::ModelOptions& options) {
  const models::ConfigReader model = models::configuration_of(options);
  const std::string type = model.text("model_type", "");
  const bool is_qwen = models::is_qwen_vl(model), is_internvl = models::is_internvl(model);
  if (!is_qwen && !is_internvl) {
    config_error(
        "--mm-data has pictures, and the model, {}, takes none; use a Qwen-VL or InternVL model, or --data-path",
        type.empty() ? "of no model_type" : type);
  }
  if (is_qwen == (config.type == DatasetType::kHuggingFace)) return;
  config_error("{}: dataset_type is {}, and the model is {}; write dataset_type: {}", config.where,
               is_qwen ? "multimodal" : "huggingface", type, is_qwen ? "huggingface" : "multimodal");
}

multimodal::DataConfig read_config(const train::TrainSections& job) {
  return multimodal::read_data_config_file(
      *job.data.mm_data, {.micro_batch_size = job.schedule.micro_batch_size, .seq_length = job.data.seq_length});
}

data::DataLoader with_numbers(data::DataLoader loader) {
  if (!loader) return loader;
  return [loader = std::move(loader)](std::span<const std::int64_t> samples) {
    data::Batch batch = loader(samples);
    for (auto& [name, value] : batch.values) {
      if (name.ends_with("_grid_thw")) value = models::to_value(models::grids_of(value));
    }
    return batch;
  };
}

// The pictures of a sequence: rows of pixel_values, their grids, and their tokens.
struct PlannedPictures {
  std::vector<std::int64_t> rows;  // the shape of one sequence's pixel_values
  std::vector<models::VisionGrid> grids{};
  std::int64_t tokens = 0;
};

// The published models' limits.
images::PatchOptions processor_of(const models::QwenVlConfig& config, const models::ModelOptions& options) {
  if (const auto path = models::model_path(options);
      path && std::filesystem::exists(*path / "preprocessor_config.json")) {
    const images::ImageProcessor processor = images::read_image_processor(*path);
    if (processor.patches() != nullptr) return *processor.patches();
  }
  const std::int64_t side = config.vision.patch_size * config.vision.spatial_merge_size;
  return {.patch_size = config.vision.patch_size,
          .merge_size = config.vision.spatial_merge_size,
          .temporal_patch_size = config.vision.temporal_patch_size,
          .min_pixels = 4 * side * side,
          .max_pixels = 16384 * side * side};
}

PlannedPictures of_qwen(const models::QwenVlConfig& config, images::ImageSize size, std::int64_t count,
                        const models::ModelOptions& options) {
  const images::Grid grid = images::grid_of(size, processor_of(config, options));
  const std::int64_t patches = count * grid.t * grid.h * grid.w;
  return {{patches, config.vision.patch_values()},
          std::vector<models::VisionGrid>(static_cast<std::size_t>(count), {grid.t, grid.h, grid.w}),
          patches / config.vision.merged()};
}

// Of the folder's processor, or the published one; InternVLChatModel's configuration has its own.
images::TileOptions tiles_of(const models::InternVLConfig& config, const models::ModelOptions& options) {
  if (config.chat) {
    return images::tile_options({.dynamic_image_size = config.chat->dynamic_image_size,
                                 .use_thumbnail = config.chat->use_thumbnail,
                                 .min_dynamic_patch = config.chat->min_dynamic_patch,
                                 .max_dynamic_patch = config.chat->max_dynamic_patch},
                                config.image_size());
  }
  if (const auto path = models::model_path(options);
      path && std::filesystem::exists(*path / "preprocessor_config.json")) {
    const images::ImageProcessor processor = images::read_image_processor(*path);
    if (processor.tiles() != nullptr) return *processor.tiles();
  }
  return {.image_size = config.image_size()};
}

PlannedPictures of_internvl(const models::InternVLConfig& config, images::ImageSize size, std::int64_t count,
                            const models::ModelOptions& options) {
  const images::TileOptions cut = tiles_of(config, options);
  const std::int64_t side = cut.image_size, tiles = count * images::tile_count(size, cut);
  if (side % config.image_unit() != 0) {
    config_error(
        "--image-size: the picture processor makes tiles of {} x {} pixels, and the model takes multiples of {}", side,
        side, config.image_unit());
  }
  return {{tiles, config.vision.num_channels, side, side}, {}, tiles * config.image_tokens(side)};
}

PlannedPictures pictures_of_a_sequence(const train::TrainSections& job) {
  const std::vector<std::int64_t>& size = job.data.image_size;
  if (size.size() > 2) config_error("--image-size has {} numbers; give a side, or width and height", size.size());
  const images::ImageSize pixels{size.front(), size.back()};
  constexpr std::int64_t kMostSide = 1 << 16;
  if (std::max(pixels.width, pixels.height) > kMostSide) {
    config_error("--image-size is {} x {}; use at most {}", pixels.width, pixels.height, kMostSide);
  }
  const models::ConfigReader reader = models::configuration_of(job.model);
  const std::int64_t count = job.data.images_per_sample;
  const bool is_qwen = models::is_qwen_vl(reader);
  if (!is_qwen && !models::is_internvl(reader)) {
    config_error(
        "--image-size is given, and the model takes no pictures; use a Qwen-VL or InternVL model, or remove it");
  }
  PlannedPictures pictures = is_qwen ? of_qwen(models::read_qwen_vl_config(reader), pixels, count, job.model)
                                     : of_internvl(models::read_internvl_config(reader), pixels, count, job.model);
  if (pictures.tokens <= job.data.seq_length) return pictures;
  config_error("--seq-length is {}, and {} picture{} of {} x {} take{} {} tokens; use at least as many",
               job.data.seq_length, count, count == 1 ? "" : "s", pixels.width, pixels.height, count == 1 ? "s" : "",
               pictures.tokens);
}

}  // namespace

data::DataLoaders planned_pictures(const train::TrainSections& job) {
  const PlannedPictures pictures = pictures_of_a_sequence(job);
  data::DataLoaders loaders;
  loaders.about = fmt::format("{} picture{} in each sequence: {} of its {} tokens", job.data.images_per_sample,
                              job.data.images_per_sample == 1 ? "" : "s", pictures.tokens, job.data.seq_length);
  loaders.train = [pictures, length = job.data.seq_length](std::span<const std::int64_t> samples) {
    const auto rows = static_cast<std::int64_t>(samples.size());
    std::vector<std::int64_t> pixels = pictures.rows;
    pixels.front() *= rows;
    data::Batch batch{{{"input_ids", Tensor::meta({rows, length}, DType::kI32, "input_ids")},
                       {"targets", Tensor::meta({rows, length}, DType::kI32, "targets")},
                       {"pixel_values", Tensor::meta(Shape(pixels), DType::kF32, "pixel_values")}}};
    std::vector<models::VisionGrid> grids;
    for (std::int64_t row = 0; row < rows; ++row)
      grids.insert(grids.end(), pictures.grids.begin(), pictures.grids.end());
    if (!grids.empty()) batch.values.emplace_back("image_grid_thw", models::to_value(grids));
    return batch;
  };
  return loaders;
}

data::DataLoaders picture_loaders(const train::TrainSections& job) {
  const train::ScheduleOptions& schedule = job.schedule;
  const multimodal::DataConfig config = read_config(job);
  check_model(config, job.model);
  const std::int64_t ranks = train::data_ranks(job.parallel, job.launch.ranks);
  multimodal::MultimodalData data = multimodal::open_multimodal_data(
      config,
      {.pictures = multimodal::make_image_reader(config),
       .micro_batch_size = schedule.micro_batch_size,
       .data_ranks = ranks,
       .micro_batches = std::max<std::int64_t>(1, schedule.global_batch_size / schedule.micro_batch_size / ranks),
       .seed = job.data.seed});
  data.loaders.train = with_numbers(std::move(data.loaders.train));
  data.loaders.valid = with_numbers(std::move(data.loaders.valid));
  return std::move(data.loaders);
}

std::filesystem::path picture_model_folder(const train::TrainSections& job) {
  return multimodal::tokenizer_folder(read_config(job));
}

}  // namespace loom::cli
