#include "engine/images/patches.h"

#include <algorithm>
#include <cmath>

#include "engine/core/checked.h"
#include "engine/core/error.h"

namespace loom::images {
namespace {

constexpr double kMostRatio = 200;
constexpr std::int64_t kLongestSide = 4096;  // of a patch, a merge block or the frames of a patch

void check_part(std::int64_t value, const char* name) {
  if (value >= 1 && value <= kLongestSide) return;
  config_error("pictures: {} is {}; use 1 to {}", name, value, kLongestSide);
}

void check_options(const PatchOptions& options) {
  check_part(options.patch_size, "patch_size");
  check_part(options.merge_size, "merge_size");
  check_part(options.temporal_patch_size, "temporal_patch_size");
  if (options.min_pixels < 0 || options.max_pixels < std::max<std::int64_t>(1, options.min_pixels) ||
      options.max_pixels > kMostPixels) {
    config_error("pictures: min_pixels is {} and max_pixels {}; use 0 <= min_pixels <= max_pixels <= {}",
                 options.min_pixels, options.max_pixels, kMostPixels);
  }
}

void check_picture(ImageSize size) {
  const std::int64_t shorter = std::min(size.width, size.height);
  const std::int64_t longer = std::max(size.width, size.height);
  if (shorter < 1 || longer > kMostPixels) {
    config_error("a picture of {} x {} pixels; both sides must be 1 to {}", size.width, size.height, kMostPixels);
  }
  if (static_cast<double>(longer) / static_cast<double>(shorter) > kMostRatio) {
    config_error(
        "a picture of {} x {} pixels; the longer side may be {} times the shorter, crop the picture or leave "
        "it out",
        size.width, size.height, kMostRatio);
  }
}

// The multiple of `factor` that `round` chooses for a length.
template <class Round>
std::int64_t multiple(double length, std::int64_t factor, Round round) {
  return static_cast<std::int64_t>(round(length / static_cast<double>(factor))) * factor;
}

constexpr auto kHalfToEven = [](double x) { return std::nearbyint(x); };
constexpr auto kDown = [](double x) { return std::floor(x); };
constexpr auto kUp = [](double x) { return std::ceil(x); };

// The sides of a patch and of a merge block, and the times of a row.
struct PatchShape {
  std::int64_t patch;
  std::int64_t merge;
  std::int64_t times;

  std::int64_t pixels() const { return patch * patch; }
  std::int64_t row_values() const { return 3 * times * pixels(); }
};

// One frame's values of the patch whose upper left pixel is `from`, at time `time` of its row.
void write_patch(const std::uint8_t* from, std::int64_t stride, const ValueTable& table, const PatchShape& shape,
                 std::int64_t time, float* row) {
  for (std::int64_t c = 0; c < 3; ++c) {
    float* to = row + (c * shape.times + time) * shape.pixels();
    const auto& values = table[static_cast<std::size_t>(c)];
    for (std::int64_t y = 0; y < shape.patch; ++y) {
      const std::uint8_t* bytes = from + y * stride + c;
      for (std::int64_t x = 0; x < shape.patch; ++x) *to++ = values[bytes[3 * x]];
    }
  }
}

// All patches of a frame, of the size of the grid; `rows` are those of its t.
void write_frame(const Image& frame, const ValueTable& table, const PatchShape& shape, std::int64_t time, float* rows) {
  const std::int64_t block = shape.patch * shape.merge;
  const std::int64_t stride = 3 * frame.width;
  for (std::int64_t top = 0; top < frame.height; top += block) {
    for (std::int64_t left = 0; left < frame.width; left += block) {
      for (std::int64_t i = 0; i < shape.merge * shape.merge; ++i, rows += shape.row_values()) {
        const std::int64_t y = top + i / shape.merge * shape.patch;
        const std::int64_t x = left + i % shape.merge * shape.patch;
        write_patch(frame.row(y) + 3 * x, stride, table, shape, time, rows);
      }
    }
  }
}

// Copies the values of the first time to the others.
void repeat_first_time(const PatchShape& shape, std::int64_t rows, float* values) {
  for (std::int64_t part = 0; part < 3 * rows; ++part, values += shape.times * shape.pixels()) {
    for (std::int64_t time = 1; time < shape.times; ++time) {
      std::copy_n(values, shape.pixels(), values + time * shape.pixels());
    }
  }
}

PatchShape shape_of(const PatchOptions& options) {
  return {options.patch_size, options.merge_size, options.temporal_patch_size};
}

std::vector<float> values_for(const Grid& grid, const PatchShape& shape) {
  const auto frames = checked_multiply(grid.h * grid.w * shape.row_values(), grid.t);
  require(frames.has_value(), "{} x {} x {} patches have too many values", grid.t, grid.h, grid.w);
  return std::vector<float>(static_cast<std::size_t>(*frames));
}

}  // namespace

ImageSize smart_resize(ImageSize size, const PatchOptions& options) {
  check_options(options);
  check_picture(size);
  const std::int64_t factor = options.patch_size * options.merge_size;
  const auto width = static_cast<double>(size.width);
  const auto height = static_cast<double>(size.height);
  ImageSize result{multiple(width, factor, kHalfToEven), multiple(height, factor, kHalfToEven)};
  const std::int64_t area = result.width * result.height;
  if (area > options.max_pixels) {
    const double beta = std::sqrt(width * height / static_cast<double>(options.max_pixels));
    result = {std::max(factor, multiple(width / beta, factor, kDown)),
              std::max(factor, multiple(height / beta, factor, kDown))};
  } else if (area < options.min_pixels) {
    const double beta = std::sqrt(static_cast<double>(options.min_pixels) / (width * height));
    result = {multiple(width * beta, factor, kUp), multiple(height * beta, factor, kUp)};
  }
  if (result.width < 1 || result.height < 1) {
    config_error(
        "a picture of {} x {} pixels would be resized to {} x {}; raise min_pixels, which is {}, to {} or more",
        size.width, size.height, result.width, result.height, options.min_pixels, factor * factor);
  }
  return result;
}

Grid grid_of(ImageSize original, const PatchOptions& options) {
  const ImageSize resized = smart_resize(original, options);
  return {1, resized.height / options.patch_size, resized.width / options.patch_size};
}

std::int64_t tokens_of(const Grid& grid, std::int64_t merge_size) {
  return grid.t * grid.h * grid.w / (merge_size * merge_size);
}

Patches patches_of(const Image& image, const PatchOptions& options) {
  const Grid grid = grid_of(image.size(), options);
  const PatchShape shape = shape_of(options);
  const ValueTable table = value_table(options.mean, options.std);
  Patches patches{grid, values_for(grid, shape)};
  const Image resized = resize(image, grid.w * shape.patch, grid.h * shape.patch, options.filter);
  write_frame(resized, table, shape, 0, patches.values.data());
  repeat_first_time(shape, grid.h * grid.w, patches.values.data());
  return patches;
}

Patches patches_of_video(std::span<const Image> frames, const PatchOptions& options) {
  if (frames.empty()) config_error("a video without frames; give at least one");
  Grid grid = grid_of(frames.front().size(), options);
  const PatchShape shape = shape_of(options);
  const auto count = static_cast<std::int64_t>(frames.size());
  grid.t = (count + shape.times - 1) / shape.times;
  const ValueTable table = value_table(options.mean, options.std);
  Patches patches{grid, values_for(grid, shape)};
  const std::int64_t values = grid.h * grid.w * shape.row_values();
  Image resized;
  for (std::int64_t i = 0; i < grid.t * shape.times; ++i) {
    if (i < count) {
      resized = resize(frames[static_cast<std::size_t>(i)], grid.w * shape.patch, grid.h * shape.patch, options.filter);
    }
    write_frame(resized, table, shape, i % shape.times, patches.values.data() + i / shape.times * values);
  }
  return patches;
}

}  // namespace loom::images
