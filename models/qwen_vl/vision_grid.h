// VisionGrid: the size of a picture or a video in patches, as calls of a model with pictures name it; where its patches
// lie, and in which windows.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/nn/value.h"
#include "models/qwen_vl/qwen_vl_config.h"

namespace loom::models {

// A picture or a video in patches.
struct VisionGrid {
  std::int64_t t = 0;
  std::int64_t h = 0;
  std::int64_t w = 0;
  bool operator==(const VisionGrid&) const = default;
};

// From a list of whole numbers, or an int32 or int64 tensor [n,3] of the host.
std::vector<VisionGrid> grids_of(const nn::Value& grid_thw);
nn::Value to_value(const std::vector<VisionGrid>& grids);
// ConfigError for one that is not made of whole squares of `merge` x `merge` patches.
void check_grids(const std::vector<VisionGrid>& grids, std::int64_t merge);

// The order of Qwen2.5-VL's windows: cell `order[i]` is at place i, and the patches of each window. Cells are squares
// of M patches, numbered row by row, frame by frame, picture by picture.
struct Windows {
  std::vector<std::int64_t> order;
  std::vector<std::int64_t> lengths;
};
Windows windows_of(const std::vector<VisionGrid>& grids, const QwenVisionConfig& config);

// Row and column of each patch within its frame, in the processors' order.
struct PatchPlace {
  std::int64_t row = 0;
  std::int64_t column = 0;
};
std::vector<PatchPlace> places_of(const std::vector<VisionGrid>& grids, std::int64_t merge);

}  // namespace loom::models
