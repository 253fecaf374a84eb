// The weights of one pass of resizing. Private to engine/images.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/images/resize.h"

namespace loom::images {

// Bits behind the point of a weight: 8 of a pixel and 2 of overshoot leave 22 of 32.
inline constexpr int kWeightBits = 22;

// Result i is the sum of pixels first[i] ... first[i] + count[i] - 1, times weights[i * stride ...].
struct ResampleWeights {
  std::int64_t stride = 0;
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> count;
  std::vector<std::int32_t> weights;
};

// From `from` pixels to `to`; the filter is kBilinear or kBicubic.
ResampleWeights resample_weights(std::int64_t from, std::int64_t to, Filter filter);

}  // namespace loom::images
