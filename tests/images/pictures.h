// Pictures of tests, and files of them. Bytes come from a formula.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/images/image.h"

namespace loom::images {

// Hard edges and slopes of all channels, another picture for each seed.
Image patterned(std::int64_t width, std::int64_t height, std::uint32_t seed = 1);

struct PngShape {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::uint8_t bit_depth = 8;
  std::uint8_t color_type = 2;
  bool interlaced = false;
  std::vector<std::uint8_t> palette = {};  // red, green, blue
};

// A PNG file of these rows, as libspng writes it.
std::string png_file(const PngShape& shape, std::span<const std::uint8_t> rows);
std::string png_file(const Image& image);

struct JpegShape {
  int width = 0;
  int height = 0;
  int channels = 3;  // 1 grey, 3 RGB as YCbCr, 4 CMYK
  bool progressive = false;
};

// A JPEG file of quality 95, as libjpeg writes it.
std::string jpeg_file(const JpegShape& shape, std::span<const std::uint8_t> rows);

std::string ppm_file(const Image& image);

std::span<const std::byte> bytes_of(std::string_view text);

}  // namespace loom::images
