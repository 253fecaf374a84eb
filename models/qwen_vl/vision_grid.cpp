#include "models/qwen_vl/vision_grid.h"

#include <algorithm>
#include <numeric>

#include "engine/core/error.h"

namespace loom::models {
namespace {

std::vector<std::int64_t> numbers_of(const nn::Value& grid_thw) {
  std::vector<std::int64_t> numbers;
  if (!grid_thw.is_tensor()) {
    for (const nn::Value& number : grid_thw.list()) numbers.push_back(number.number());
    return numbers;
  }
  const Tensor& tensor = grid_thw.tensor();
  if (tensor.dtype() == DType::kI64) return tensor.to_vector<std::int64_t>();
  for (const std::int32_t number : tensor.to_vector<std::int32_t>()) numbers.push_back(number);
  return numbers;
}

// The cells of one frame, window by window.
void add_frame(std::int64_t first, std::int64_t rows, std::int64_t columns, std::int64_t side, std::int64_t merged,
               Windows& windows) {
  for (std::int64_t top = 0; top < rows; top += side) {
    for (std::int64_t left = 0; left < columns; left += side) {
      const std::int64_t bottom = std::min(top + side, rows), right = std::min(left + side, columns);
      for (std::int64_t row = top; row < bottom; ++row) {
        for (std::int64_t column = left; column < right; ++column) {
          windows.order.push_back(first + row * columns + column);
        }
      }
      windows.lengths.push_back((bottom - top) * (right - left) * merged);
    }
  }
}

}  // namespace

std::vector<VisionGrid> grids_of(const nn::Value& grid_thw) {
  if (grid_thw.is_none()) return {};
  const std::vector<std::int64_t> numbers = numbers_of(grid_thw);
  check_model(numbers.size() % 3 == 0, "a grid has {} numbers; three a picture are needed: time, height, width",
              numbers.size());
  std::vector<VisionGrid> grids;
  for (std::size_t i = 0; i < numbers.size(); i += 3) grids.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  return grids;
}

nn::Value to_value(const std::vector<VisionGrid>& grids) {
  nn::ValueList numbers;
  for (const VisionGrid& grid : grids) {
    for (const std::int64_t number : {grid.t, grid.h, grid.w}) numbers.emplace_back(number);
  }
  return numbers;
}

void check_grids(const std::vector<VisionGrid>& grids, std::int64_t merge) {
  for (std::size_t i = 0; i < grids.size(); ++i) {
    const VisionGrid& g = grids[i];
    if (g.t > 0 && g.h > 0 && g.w > 0 && g.h % merge == 0 && g.w % merge == 0) continue;
    config_error("the grid of picture {} is {} x {} x {}, in patches; height and width are multiples of {}", i, g.t,
                 g.h, g.w, merge);
  }
}

Windows windows_of(const std::vector<VisionGrid>& grids, const QwenVisionConfig& config) {
  const std::int64_t merge = config.spatial_merge_size, side = config.window_size / (merge * config.patch_size);
  Windows windows;
  std::int64_t first = 0;
  for (const VisionGrid& grid : grids) {
    const std::int64_t rows = grid.h / merge, columns = grid.w / merge;
    for (std::int64_t frame = 0; frame < grid.t; ++frame) {
      add_frame(first, rows, columns, side, merge * merge, windows);
      first += rows * columns;
    }
  }
  return windows;
}

std::vector<PatchPlace> places_of(const std::vector<VisionGrid>& grids, std::int64_t merge) {
  std::vector<PatchPlace> places;
  for (const VisionGrid& grid : grids) {
    const auto begin = std::ssize(places);
    for (std::int64_t row = 0; row < grid.h; row += merge) {
      for (std::int64_t column = 0; column < grid.w; column += merge) {
        for (std::int64_t i = 0; i < merge * merge; ++i) places.push_back({row + i / merge, column + i % merge});
      }
    }
    const std::vector<PatchPlace> frame(places.begin() + begin, places.end());
    for (std::int64_t t = 1; t < grid.t; ++t) places.insert(places.end(), frame.begin(), frame.end());
  }
  return places;
}

}  // namespace loom::models
