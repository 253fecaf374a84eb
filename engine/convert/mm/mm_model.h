// The model of a conversion to or from MindSpeed-MM's layout: its config.json, held against the user's layout.
// Private to engine/convert.
//
// Errors   ConfigError with flag, file, both figures and the remedy.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/convert/mcore/mcore_layers.h"
#include "engine/convert/mm/mm.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::checkpoint {

struct MmModel {
  std::filesystem::path file;  // config.json
  models::QwenVlConfig config;

  bool tied() const { return config.text.tie_word_embeddings; }
};

// `flag` begins the message about a folder without config.json.
MmModel read_mm_model(const std::string& flag, const std::filesystem::path& folder,
                      const std::optional<std::string>& model_type);

// Where the layers of a tower are.
struct TowerPlan {
  std::vector<LayerPlace> layers;  // by the model's number
  LayerPlace before() const { return {layers.front().stage, layers.front().chunk, 0}; }
  LayerPlace behind() const { return {layers.back().stage, layers.back().chunk, 0}; }
};

struct MmPlan {
  int stages = 1;
  int chunks = 1;  // of each stage
  TowerPlan vision;
  TowerPlan text;
};

MmPlan plan_mm(const MmLayout& layout, const MmModel& model);

}  // namespace loom::checkpoint
