// The size limits that MindSpeed-MM applies to a picture before the processor of its model sees it (image_max_pixels,
// image_min_pixels).
//
// Rule     an area above max_pixels: both sides times sqrt(max_pixels / area), rounded down. Then an area below
//          min_pixels in the same way. Both by `filter`.
// Qwen     with `sides` also: a side below 28 becomes 28; then a side of more than 200 times the other becomes 180
//          times as long as it. Both bicubic, as the defaults of Pillow are.
// Nearest  is MindSpeed-MM's filter. It aliases: fine patterns of a photo become noise. Bicubic does not.
// Threads  any number at once.
// Errors   ConfigError for limits that are no limits, and where a side would become 0.
#pragma once

#include <cstdint>

#include "engine/images/image.h"
#include "engine/images/resize.h"

namespace loom::images {

struct PreclampOptions {
  std::int64_t max_pixels = 768 * 768;
  std::int64_t min_pixels = 32 * 32;
  Filter filter = Filter::kNearest;
  bool sides = true;
};

// The size of preclamp()'s result.
ImageSize preclamped_size(ImageSize size, const PreclampOptions& options);

Image preclamp(Image image, const PreclampOptions& options);

}  // namespace loom::images
