#include "engine/images/preclamp.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/core/error.h"

namespace loom::images {
namespace {

constexpr std::int64_t kShortestSide = 28;
constexpr std::int64_t kMostRatio = 200;
constexpr std::int64_t kRatioAfter = 180;

struct Step {
  ImageSize size;
  Filter filter;
};

double area_of(ImageSize size) { return static_cast<double>(size.width) * static_cast<double>(size.height); }

ImageSize scaled_to(ImageSize size, std::int64_t pixels) {
  const double factor = std::sqrt(static_cast<double>(pixels) / area_of(size));
  const ImageSize scaled{static_cast<std::int64_t>(static_cast<double>(size.width) * factor),
                         static_cast<std::int64_t>(static_cast<double>(size.height) * factor)};
  if (scaled.width < 1 || scaled.height < 1) {
    config_error("a picture of {} x {} pixels would be resized to {} x {}; crop the picture or leave it out",
                 size.width, size.height, scaled.width, scaled.height);
  }
  return scaled;
}

bool is_longer(std::int64_t side, std::int64_t other) {
  return static_cast<double>(side) / static_cast<double>(other) > static_cast<double>(kMostRatio);
}

void check_preclamp(ImageSize size, const PreclampOptions& options) {
  if (options.min_pixels < 0 || options.max_pixels < std::max<std::int64_t>(1, options.min_pixels) ||
      options.max_pixels > kMostPixels) {
    config_error(
        "pictures: image_min_pixels is {} and image_max_pixels {}; use 0 <= image_min_pixels <= "
        "image_max_pixels <= {}",
        options.min_pixels, options.max_pixels, kMostPixels);
  }
  if (size.width < 1 || size.height < 1 || area_of(size) > static_cast<double>(kMostPixels)) {
    config_error("a picture of {} x {} pixels; both sides must be at least 1, and the product at most {}", size.width,
                 size.height, kMostPixels);
  }
}

std::vector<Step> steps_of(ImageSize size, const PreclampOptions& options) {
  check_preclamp(size, options);
  std::vector<Step> steps;
  const auto go_to = [&](ImageSize next, Filter filter) {
    size = next;
    steps.push_back({size, filter});
  };
  if (size.width * size.height > options.max_pixels) go_to(scaled_to(size, options.max_pixels), options.filter);
  if (size.width * size.height < options.min_pixels) go_to(scaled_to(size, options.min_pixels), options.filter);
  if (!options.sides) return steps;
  if (std::min(size.width, size.height) < kShortestSide) {
    go_to({std::max(size.width, kShortestSide), std::max(size.height, kShortestSide)}, Filter::kBicubic);
  }
  if (is_longer(size.width, size.height)) go_to({kRatioAfter * size.height, size.height}, Filter::kBicubic);
  if (is_longer(size.height, size.width)) go_to({size.width, kRatioAfter * size.width}, Filter::kBicubic);
  return steps;
}

}  // namespace

ImageSize preclamped_size(ImageSize size, const PreclampOptions& options) {
  const auto steps = steps_of(size, options);
  return steps.empty() ? size : steps.back().size;
}

Image preclamp(Image image, const PreclampOptions& options) {
  for (const Step& step : steps_of(image.size(), options)) {
    image = resize(image, step.size.width, step.size.height, step.filter);
  }
  return image;
}

}  // namespace loom::images
