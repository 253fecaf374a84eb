#include "engine/images/resample_weights.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"

namespace loom::images {
namespace {

double triangle(double x) { return std::max(0.0, 1.0 - std::fabs(x)); }

// Keys' cubic. The order of the operations decides the last bits.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

std::int32_t fixed_point(double weight) {
  const double scaled = weight * (1 << kWeightBits);
  return static_cast<std::int32_t>(weight < 0 ? scaled - 0.5 : scaled + 0.5);
}

}  // namespace

ResampleWeights resample_weights(std::int64_t from, std::int64_t to, Filter filter) {
  require(filter != Filter::kNearest, "the nearest pixel has no weights");
  const bool is_cubic = filter == Filter::kBicubic;
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double widening = std::max(scale, 1.0);
  const double support = (is_cubic ? 2.0 : 1.0) * widening;
  const double narrowing = 1.0 / widening;

  ResampleWeights result;
  result.stride = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  result.weights.resize(static_cast<std::size_t>(to * result.stride));
  std::vector<double> exact(static_cast<std::size_t>(result.stride));
  for (std::int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
    const auto end = std::min(from, static_cast<std::int64_t>(center + support + 0.5));
    double sum = 0;
    for (std::int64_t k = first; k < end; ++k) {
      const double x = (static_cast<double>(k) - center + 0.5) * narrowing;
      sum += exact[static_cast<std::size_t>(k - first)] = is_cubic ? cubic(x) : triangle(x);
    }
    for (std::int64_t k = 0; k < end - first; ++k) {
      const double weight = exact[static_cast<std::size_t>(k)];
      result.weights[static_cast<std::size_t>(i * result.stride + k)] = fixed_point(sum == 0 ? weight : weight / sum);
    }
    result.first.push_back(first);
    result.count.push_back(end - first);
  }
  return result;
}

}  // namespace loom::images
