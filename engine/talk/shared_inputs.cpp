#include "engine/talk/shared_inputs.h"

#include <vector>

#include "models/qwen_vl/vision_grid.h"

namespace loom::talk {
namespace {

// A list of any length.
std::vector<std::int64_t> shared(std::vector<std::int64_t> list, comm::ProcessGroup& everyone) {
  std::int64_t count = std::ssize(list);
  everyone.broadcast(comm::kHostLane, &count, sizeof(count), 0, "size of the pictures");
  list.resize(static_cast<std::size_t>(count));
  if (count > 0)
    everyone.broadcast(comm::kHostLane, list.data(), list.size() * sizeof(list[0]), 0, "size of the pictures");
  return list;
}

}  // namespace

nn::ValueDict shared_inputs(const nn::ValueDict& inputs, comm::ProcessGroup& everyone) {
  std::vector<std::int64_t> shape, grids;
  if (!inputs.empty()) shape = inputs.front().second.tensor().shape().sizes();
  if (inputs.size() > 1) {
    for (const models::VisionGrid& grid : models::grids_of(inputs[1].second)) {
      grids.insert(grids.end(), {grid.t, grid.h, grid.w});
    }
  }
  shape = shared(shape, everyone);
  grids = shared(grids, everyone);
  if (shape.empty()) return {};
  const Tensor pixels =
      inputs.empty() ? Tensor::host(Shape(shape), DType::kF32, "pixel_values") : inputs.front().second.tensor();
  everyone.broadcast(comm::kHostLane, pixels.raw(), static_cast<std::size_t>(pixels.nbytes()), 0, "pictures");
  nn::ValueDict all{{"pixel_values", pixels}};
  std::vector<models::VisionGrid> of_pictures;
  for (std::size_t i = 0; i + 2 < grids.size(); i += 3) of_pictures.push_back({grids[i], grids[i + 1], grids[i + 2]});
  if (!of_pictures.empty()) all.emplace_back("image_grid_thw", models::to_value(of_pictures));
  return all;
}

}  // namespace loom::talk
