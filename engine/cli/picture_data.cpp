#include "engine/cli/picture_data.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/multimodal/image_reader.h"
#include "engine/multimodal/multimodal_data.h"
#include "models/hub/config_reader.h"
#include "models/hub/model_source.h"
#include "models/internvl/internvl_config.h"
#include "models/qwen_vl/qwen_vl_config.h"
#include "models/qwen_vl/qwen_vl_vision.h"

namespace loom::cli {
namespace {

using multimodal::DatasetType;

// The dataset_type that the model takes.
void check_model(const multimodal::DataConfig& config, const models::ModelOptions& options) {
  const models::ConfigReader model = models::configuration_of(options);
  const std::string type = model.text("model_type", "");
  const bool is_qwen = models::is_qwen_vl(model), is_internvl = type == "internvl";
  if (!is_qwen && !is_internvl) {
    config_error(
        "--mm-data has pictures, and the model, {}, takes none; use a Qwen-VL or InternVL model, or --data-path",
        type.empty() ? "of no model_type" : type);
  }
  if (is_qwen == (config.type == DatasetType::kHuggingFace)) return;
  config_error("{}: dataset_type is {}, and the model is {}; write dataset_type: {}", config.where,
               is_qwen ? "multimodal" : "huggingface", type, is_qwen ? "huggingface" : "multimodal");
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

}  // namespace

data::DataLoaders picture_loaders(const train::TrainSections& job) {
  const train::ScheduleOptions& schedule = job.schedule;
  const multimodal::DataConfig config = multimodal::read_data_config_file(
      *job.data.mm_data, {.micro_batch_size = schedule.micro_batch_size, .seq_length = job.data.seq_length});
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

}  // namespace loom::cli
