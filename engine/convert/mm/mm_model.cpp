#include "engine/convert/mm/mm_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/folder_kind.h"
#include "models/hub/config_reader.h"
#include "models/qwen_vl/stored_names.h"

namespace loom::checkpoint {
namespace {

constexpr const char* kTextFlag = "--llm-pp-layers";
constexpr const char* kVisionFlag = "--vit-pp-layers";
// Of the numbers in the names of directories.
constexpr std::size_t kMostStages = 1000;

std::string shown(const LayerLists& lists) {
  std::vector<std::string> texts;
  for (const auto& list : lists) texts.push_back(fmt::format("[{}]", fmt::join(list, ",")));
  return fmt::format("[{}]", fmt::join(texts, ","));
}

void check_lists(const char* flag, const LayerLists& lists) {
  if (lists.empty() || lists.front().empty()) {
    config_error("{} is {}; write the layers of each stage: [[1,10,10,7]]", flag, shown(lists));
  }
  for (const auto& list : lists) {
    if (list.size() != lists.front().size()) {
      config_error("{} is {}: its lists have {} and {} stages; write as many numbers in each", flag, shown(lists),
                   lists.front().size(), list.size());
    }
  }
  if (lists.front().size() > kMostStages) {
    config_error("{} has {} stages; at most {} are written", flag, lists.front().size(), kMostStages);
  }
}

TowerPlan plan_tower(const char* flag, const LayerLists& lists, std::int64_t layers, const MmModel& model,
                     const char* key) {
  std::int64_t left = layers;
  TowerPlan plan;
  for (std::size_t chunk = 0; chunk < lists.size(); ++chunk) {
    for (std::size_t stage = 0; stage < lists[chunk].size(); ++stage) {
      const std::int64_t count = lists[chunk][stage];
      if (count > left) {
        config_error("{} {} is more layers than {} has, {} ({}); write numbers that sum up to {}", flag, shown(lists),
                     model.file.string(), layers, key, layers);
      }
      left -= count;
      for (std::int64_t local = 0; local < count; ++local) {
        plan.layers.push_back({static_cast<int>(stage), static_cast<int>(chunk), local});
      }
    }
  }
  if (left == 0) return plan;
  config_error("{} {} sums up to {} layers, but {} has {} ({}); write numbers that sum up to {}", flag, shown(lists),
               layers - left, model.file.string(), layers, key, layers);
}

void check_divides(const MmModel& model, int tensor_size, std::int64_t count, const char* key) {
  if (count % tensor_size == 0) return;
  config_error("--tp-size is {}, but {} has {} {}, which it does not divide; write a divisor of {}", tensor_size,
               model.file.string(), key, count, count);
}

void check_sizes(const MmModel& model, int size) {
  if (size < 1) config_error("--tp-size is {}; use a whole number of at least 1", size);
  const models::QwenVlConfig& config = model.config;
  check_divides(model, size, config.text.num_key_value_heads, "num_key_value_heads");
  check_divides(model, size, config.text.intermediate_size, "intermediate_size");
  check_divides(model, size, config.text.vocab_size, "vocab_size");
  check_divides(model, size, config.vision.num_heads, "vision_config.num_heads");
  check_divides(model, size, config.vision.intermediate_size,
                config.version == models::QwenVlVersion::k2 ? "vision_config.embed_dim times mlp_ratio"
                                                            : "vision_config.intermediate_size");
}

}  // namespace

MmModel read_mm_model(const std::string& flag, const std::filesystem::path& folder,
                      const std::optional<std::string>& model_type) {
  MmModel model{.file = folder / "config.json", .config = {}};
  if (const std::string why = io::why_no_model(folder); !why.empty()) {
    config_error("{}: {} {}", flag, folder.string(), why);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(model.file, error)) {
    config_error("{}: {} has no config.json; give the folder of the model", flag, folder.string());
  }
  const std::string type = models::ConfigReader::load(model.file).text("model_type");
  if (!models::has_published_qwen_vl_names(type)) {
    config_error(
        "{}: model_type is '{}', which is not converted from or to MindSpeed-MM's layout; qwen2_vl and qwen2_5_vl are. "
        "Language models: shardloom convert hf-to-mcore and mcore-to-hf",
        model.file.string(), shown_text(type));
  }
  if (model_type && *model_type != type) {
    config_error("--model-type is {}, but {} has '{}'; write that, or mm-convert {}", *model_type, model.file.string(),
                 type, type == "qwen2_vl" ? "Qwen2VLConverter" : "Qwen2_5_VLConverter");
  }
  model.config = models::load_qwen_vl_config(model.file);
  return model;
}

MmPlan plan_mm(const MmLayout& layout, const MmModel& model) {
  check_lists(kTextFlag, layout.text_layers);
  check_lists(kVisionFlag, layout.vision_layers);
  const std::size_t chunks = layout.text_layers.size();
  const std::size_t stages = layout.text_layers.front().size();
  if (layout.vision_layers.size() != chunks || layout.vision_layers.front().size() != stages) {
    config_error(
        "{} {} and {} {} are not of the same stages; write as many lists of as many numbers, 0 for a stage without "
        "layers",
        kTextFlag, shown(layout.text_layers), kVisionFlag, shown(layout.vision_layers));
  }
  check_sizes(model, layout.tensor_size);
  MmPlan plan{.stages = static_cast<int>(stages), .chunks = static_cast<int>(chunks), .vision = {}, .text = {}};
  plan.vision = plan_tower(kVisionFlag, layout.vision_layers, model.config.vision.depth, model, "vision_config.depth");
  plan.text =
      plan_tower(kTextFlag, layout.text_layers, model.config.text.num_hidden_layers, model, "num_hidden_layers");
  return plan;
}

}  // namespace loom::checkpoint
