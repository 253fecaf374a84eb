#include "engine/images/resize.h"

#include <algorithm>
#include <cstring>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/images/picture_format.h"
#include "engine/images/resample_weights.h"

namespace loom::images {
namespace {

// Four pixels of as many channels, one of them unused: the red, green and blue sums of two rows.
using Lanes = std::int32_t __attribute__((vector_size(32)));
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);
constexpr std::int64_t kBlock = 128;

std::uint8_t byte_of(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp<std::int32_t>(sum >> kWeightBits, 0, 255));
}

void check_picture(const Image& image) {
  require(image.width > 0 && image.height > 0 &&
              static_cast<std::int64_t>(image.rgb.size()) == 3 * image.width * image.height,
          "a picture of {} x {} pixels has {} bytes", image.width, image.height, image.rgb.size());
}

void check_target(std::int64_t width, std::int64_t height) {
  const auto pixels = width < 1 || height < 1 ? std::nullopt : checked_multiply(width, height);
  if (pixels && *pixels <= kMostPixels) return;
  config_error(
      "a picture cannot be resized to {} x {} pixels; both sides must be at least 1, and the product at most {}", width,
      height, kMostPixels);
}

// Two rows as lanes, pixel by pixel.
void load_rows(const std::uint8_t* upper, const std::uint8_t* lower, std::vector<Lanes>& pixels) {
  for (std::size_t x = 0; x < pixels.size(); ++x, upper += 3, lower += 3) {
    pixels[x] = Lanes{upper[0], upper[1], upper[2], 0, lower[0], lower[1], lower[2], 0};
  }
}

void store_pixel(const Lanes& sum, std::uint8_t* upper, std::uint8_t* lower) {
  for (int c = 0; c < 3; ++c) {
    upper[c] = byte_of(sum[c]);
    lower[c] = byte_of(sum[4 + c]);
  }
}

// Rows [begin, end) of the picture, resized along the row.
Image resize_rows(const Image& image, std::int64_t width, std::int64_t begin, std::int64_t end, Filter filter) {
  const ResampleWeights table = resample_weights(image.width, width, filter);
  Image result = blank_image({width, end - begin});
  std::vector<Lanes> pixels(static_cast<std::size_t>(image.width));
  for (std::int64_t y = begin; y < end; y += 2) {
    const std::int64_t below = std::min(y + 1, end - 1);  // twice the last row of an odd number
    load_rows(image.row(y), image.row(below), pixels);
    std::uint8_t* upper = result.row(y - begin);
    std::uint8_t* lower = result.row(below - begin);
    for (std::int64_t x = 0; x < width; ++x, upper += 3, lower += 3) {
      const auto i = static_cast<std::size_t>(x);
      const Lanes* from = pixels.data() + table.first[i];
      const std::int32_t* weights = table.weights.data() + x * table.stride;
      Lanes sum = Lanes{} + kHalf;
      for (std::int64_t k = 0; k < table.count[i]; ++k) sum += from[k] * weights[k];
      store_pixel(sum, upper, lower);
    }
  }
  return result;
}

// A piece of one row: the weighted sum of the rows at `from`, which are `stride` bytes apart.
void mix_rows(const std::uint8_t* from, std::int64_t stride, const std::int32_t* weights, std::int64_t rows,
              std::uint8_t* to, std::int64_t bytes) {
  std::int32_t sums[kBlock];
  std::fill_n(sums, bytes, kHalf);
  for (std::int64_t k = 0; k < rows; ++k, from += stride) {
    const std::int32_t weight = weights[k];
    for (std::int64_t i = 0; i < bytes; ++i) sums[i] += from[i] * weight;
  }
  for (std::int64_t i = 0; i < bytes; ++i) to[i] = byte_of(sums[i]);
}

// `top` is the picture's row that row 0 of `image` was.
Image resize_columns(const Image& image, const ResampleWeights& table, std::int64_t top) {
  Image result = blank_image({image.width, static_cast<std::int64_t>(table.first.size())});
  const std::int64_t stride = 3 * image.width;
  for (std::int64_t y = 0; y < result.height; ++y) {
    const auto i = static_cast<std::size_t>(y);
    const std::uint8_t* from = image.row(table.first[i] - top);
    for (std::int64_t at = 0; at < stride; at += kBlock) {
      mix_rows(from + at, stride, table.weights.data() + y * table.stride, table.count[i], result.row(y) + at,
               std::min(kBlock, stride - at));
    }
  }
  return result;
}

// Pillow 13: where the height shrinks, and by more than twice the pixels of the width.
bool columns_come_first(const Image& image, std::int64_t width, std::int64_t height) {
  return height < image.height && 2 * (image.width - width) < image.height - height;
}

Image resize_smoothly(const Image& image, std::int64_t width, std::int64_t height, Filter filter) {
  if (height == image.height) return resize_rows(image, width, 0, height, filter);
  const ResampleWeights columns = resample_weights(image.height, height, filter);
  if (width == image.width) return resize_columns(image, columns, 0);
  if (columns_come_first(image, width, height)) {
    return resize_rows(resize_columns(image, columns, 0), width, 0, height, filter);
  }
  // Only the rows that the second pass reads.
  const std::int64_t begin = columns.first.front();
  const std::int64_t end = columns.first.back() + columns.count.back();
  return resize_columns(resize_rows(image, width, begin, end, filter), columns, begin);
}

// The source of each of `to` pixels. The position is a running sum, as in Pillow.
std::vector<std::int64_t> nearest_positions(std::int64_t from, std::int64_t to) {
  const double step = static_cast<double>(from) / static_cast<double>(to);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(to));
  double at = step * 0.5;
  for (std::int64_t& position : positions) {
    position = std::min(static_cast<std::int64_t>(at), from - 1);
    at += step;
  }
  return positions;
}

Image resize_nearest(const Image& image, std::int64_t width, std::int64_t height) {
  const auto columns = nearest_positions(image.width, width);
  const auto rows = nearest_positions(image.height, height);
  Image result = blank_image({width, height});
  std::uint8_t* to = result.rgb.data();
  for (const std::int64_t y : rows) {
    const std::uint8_t* row = image.row(y);
    for (const std::int64_t x : columns) to = std::copy_n(row + 3 * x, 3, to);
  }
  return result;
}

// Copies a picture into a larger one.
void paste(const Image& image, Image& to, std::int64_t left, std::int64_t top) {
  for (std::int64_t y = 0; y < image.height; ++y) {
    std::copy_n(image.row(y), 3 * image.width, to.row(top + y) + 3 * left);
  }
}

}  // namespace

Image resize(const Image& image, std::int64_t width, std::int64_t height, Filter filter) {
  check_picture(image);
  check_target(width, height);
  if (image.size() == ImageSize{width, height}) return image;
  if (filter == Filter::kNearest) return resize_nearest(image, width, height);
  return resize_smoothly(image, width, height, filter);
}

Image crop(const Image& image, std::int64_t left, std::int64_t top, ImageSize size) {
  check_picture(image);
  require(left >= 0 && top >= 0 && size.width > 0 && size.height > 0 && size.width <= image.width - left &&
              size.height <= image.height - top,
          "{} x {} pixels at ({}, {}) leave a picture of {} x {}", size.width, size.height, left, top, image.width,
          image.height);
  Image result = blank_image(size);
  for (std::int64_t y = 0; y < size.height; ++y) {
    std::copy_n(image.row(top + y) + 3 * left, 3 * size.width, result.row(y));
  }
  return result;
}

Image pad_to_square(const Image& image, const std::array<std::uint8_t, 3>& color) {
  check_picture(image);
  const std::int64_t side = std::max(image.width, image.height);
  check_target(side, side);
  Image result = blank_image({side, side});
  for (std::size_t i = 0; i < result.rgb.size(); i += 3) std::copy_n(color.data(), 3, result.rgb.data() + i);
  paste(image, result, (side - image.width) / 2, (side - image.height) / 2);
  return result;
}

}  // namespace loom::images
