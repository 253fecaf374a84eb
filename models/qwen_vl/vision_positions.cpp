#include "models/qwen_vl/vision_positions.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/device/device.h"

namespace loom::models {
namespace {

using Function = double (*)(double);
double cosine(double angle) { return std::cos(angle); }
double sine(double angle) { return std::sin(angle); }

// theta^(-2 j / (head_dim / 2)), as fp32.
std::vector<float> frequencies(std::int64_t head_dim) {
  constexpr double kTheta = 10000;
  std::vector<float> values;
  for (std::int64_t j = 0; j < head_dim / 4; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(head_dim / 2);
    values.push_back(1.0F / static_cast<float>(std::pow(kTheta, static_cast<double>(exponent))));
  }
  return values;
}

Tensor table(const std::vector<PatchPlace>& places, std::int64_t head_dim, Function function) {
  const auto patches = std::ssize(places);
  const Tensor values =
      Tensor::empty({patches, head_dim}, DType::kF32, device::MemCategory::kActivation, "rotary table of patches");
  const device::Cost cost{.flops = static_cast<double>(values.numel()), .written_bytes = values.nbytes()};
  device::Device::current().launch("rotary_table", cost, [&] {
    const std::vector<float> inverse = frequencies(head_dim);
    const std::int64_t half = head_dim / 2, quarter = head_dim / 4;
    for (std::int64_t p = 0; p < patches; ++p) {
      const PatchPlace& place = places[static_cast<std::size_t>(p)];
      float* row = values.data<float>() + p * head_dim;
      for (std::int64_t i = 0; i < half; ++i) {
        const float at = static_cast<float>(i < quarter ? place.row : place.column);
        const float angle = at * inverse[static_cast<std::size_t>(i % quarter)];
        row[i] = row[half + i] = static_cast<float>(function(static_cast<double>(angle)));
      }
    }
  });
  return values;
}

// Between two neighbours on a line of `side` positions.
struct Between {
  std::int64_t low = 0;
  std::int64_t high = 0;
  float share = 0;  // of the high one
};

// torch.linspace(0, side - 1, count)[i], in fp32.
Between between(std::int64_t i, std::int64_t count, std::int64_t side) {
  const auto last = static_cast<float>(side - 1);
  const float step = count > 1 ? last / static_cast<float>(count - 1) : 0;
  const float at =
      count > 1 && i >= count / 2 ? last - step * static_cast<float>(count - 1 - i) : step * static_cast<float>(i);
  const auto low = static_cast<std::int64_t>(at);
  return {low, std::min(low + 1, side - 1), at - static_cast<float>(low)};
}

}  // namespace

std::pair<Tensor, Tensor> vision_rotary(const std::vector<PatchPlace>& places, std::int64_t head_dim) {
  return {table(places, head_dim, cosine), table(places, head_dim, sine)};
}

std::vector<WeightedPositions> interpolated_positions(const std::vector<VisionGrid>& grids, std::int64_t merge,
                                                      std::int64_t positions) {
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(positions))));
  std::array<std::vector<std::int32_t>, 4> ids;
  std::array<std::vector<float>, 4> weights;
  for (const VisionGrid& grid : grids) {
    for (const PatchPlace& place : places_of({grid}, merge)) {
      const Between row = between(place.row, grid.h, side), column = between(place.column, grid.w, side);
      const auto add = [&](std::size_t corner, std::int64_t r, std::int64_t c, float weight) {
        ids[corner].push_back(static_cast<std::int32_t>(r * side + c));
        weights[corner].push_back(weight);
      };
      add(0, row.low, column.low, (1 - row.share) * (1 - column.share));
      add(1, row.low, column.high, (1 - row.share) * column.share);
      add(2, row.high, column.low, row.share * (1 - column.share));
      add(3, row.high, column.high, row.share * column.share);
    }
  }
  std::vector<WeightedPositions> corners;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto patches = std::ssize(ids[i]);
    corners.push_back({Tensor::from(ids[i], {patches}), Tensor::from(weights[i], {patches})});
  }
  return corners;
}

}  // namespace loom::models
