// Image: a decoded picture, 8 bits a channel.
//
// Layout   rows from top to bottom, pixels from left to right, bytes red, green, blue; no padding.
// Units    sides in pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace loom::images {

struct ImageSize {
  std::int64_t width = 0;
  std::int64_t height = 0;

  bool operator==(const ImageSize&) const = default;
};

struct Image {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::vector<std::uint8_t> rgb;  // 3 * width * height bytes

  ImageSize size() const { return {width, height}; }
  // The first byte of row y, from 0.
  std::uint8_t* row(std::int64_t y) { return rgb.data() + 3 * width * y; }
  const std::uint8_t* row(std::int64_t y) const { return rgb.data() + 3 * width * y; }
  bool operator==(const Image&) const = default;
};

// The largest picture that is read or made, in pixels: Pillow refuses more than twice its MAX_IMAGE_PIXELS.
inline constexpr std::int64_t kMostPixels = 178'956'970;

}  // namespace loom::images
