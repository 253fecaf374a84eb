// Where a patch is, as the towers use it: rotary tables, and learned positions between which they interpolate.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.h"
#include "models/qwen_vl/vision_grid.h"

namespace loom::models {

// cos and sin, fp32 [P, head_dim]: the first half of the frequencies follow the row, the others the column. Angles are
// rounded to fp32.
std::pair<Tensor, Tensor> vision_rotary(const std::vector<PatchPlace>& places, std::int64_t head_dim);

// One of the four neighbours of each patch in a square of `positions` learned ones, and its share.
struct WeightedPositions {
  Tensor ids;      // int32 [P]
  Tensor weights;  // fp32 [P]
};
std::vector<WeightedPositions> interpolated_positions(const std::vector<VisionGrid>& grids, std::int64_t merge,
                                                      std::int64_t positions);

}  // namespace loom::models
