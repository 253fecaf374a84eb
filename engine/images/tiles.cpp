#include "engine/images/tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"

namespace loom::images {
namespace {

constexpr std::int64_t kMostTiles = 1024;
constexpr std::int64_t kLongestTileSide = 8192;

void check_tiles(ImageSize size, const TileOptions& options) {
  if (options.image_size < 1 || options.image_size > kLongestTileSide) {
    config_error("pictures: image_size is {}; use 1 to {}", options.image_size, kLongestTileSide);
  }
  if (options.min_tiles < 1 || options.max_tiles < options.min_tiles || options.max_tiles > kMostTiles) {
    config_error("pictures: {} to {} tiles; use 1 <= least <= most <= {}", options.min_tiles, options.max_tiles,
                 kMostTiles);
  }
  if (size.width < 1 || size.height < 1) {
    config_error("a picture of {} x {} pixels; both sides must be at least 1", size.width, size.height);
  }
}

// {columns, rows} by product, then by columns.
std::vector<std::array<std::int64_t, 2>> candidates(const TileOptions& options) {
  std::vector<std::array<std::int64_t, 2>> all;
  for (std::int64_t columns = 1; columns <= options.max_tiles; ++columns) {
    for (std::int64_t rows = 1; rows * columns <= options.max_tiles; ++rows) {
      if (rows * columns >= options.min_tiles) all.push_back({columns, rows});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a[0] * a[1] < b[0] * b[1]; });
  return all;
}

}  // namespace

std::array<std::int64_t, 2> tile_grid(ImageSize size, const TileOptions& options) {
  check_tiles(size, options);
  const auto side = static_cast<double>(options.image_size);
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const double area = static_cast<double>(size.width) * static_cast<double>(size.height);
  std::array<std::int64_t, 2> best{1, 1};
  double least = std::numeric_limits<double>::infinity();
  for (const auto& grid : candidates(options)) {
    const auto columns = static_cast<double>(grid[0]);
    const auto rows = static_cast<double>(grid[1]);
    const double distance = std::fabs(ratio - columns / rows);
    if (distance < least || (distance == least && area > 0.5 * side * side * columns * rows)) best = grid;
    least = std::min(least, distance);
  }
  return best;
}

TileOptions tile_options(const DynamicTiles& keys, std::int64_t image_size, Filter filter) {
  TileOptions tiles{.image_size = image_size, .min_tiles = 1, .max_tiles = 1, .use_thumbnail = false, .filter = filter};
  if (!keys.dynamic_image_size) return tiles;
  tiles.max_tiles = keys.max_dynamic_patch;
  tiles.min_tiles = std::min(keys.min_dynamic_patch, tiles.max_tiles);
  tiles.use_thumbnail = keys.use_thumbnail;
  return tiles;
}

std::int64_t tile_count(ImageSize size, const TileOptions& options) {
  const auto [columns, rows] = tile_grid(size, options);
  return columns * rows + (options.use_thumbnail && columns * rows > 1 ? 1 : 0);
}

std::vector<Image> tiles_of(const Image& image, const TileOptions& options) {
  const auto [columns, rows] = tile_grid(image.size(), options);
  const std::int64_t side = options.image_size;
  const Image resized = resize(image, columns * side, rows * side, options.filter);
  std::vector<Image> tiles;
  for (std::int64_t i = 0; i < columns * rows; ++i) {
    tiles.push_back(crop(resized, i % columns * side, i / columns * side, {side, side}));
  }
  if (options.use_thumbnail && tiles.size() > 1) tiles.push_back(resize(image, side, side, options.filter));
  return tiles;
}

std::vector<float> tile_values(std::span<const Image> tiles, const Channels& mean, const Channels& std) {
  const ValueTable table = value_table(mean, std);
  std::vector<float> values;
  if (tiles.empty()) return values;
  values.reserve(tiles.size() * tiles.front().rgb.size());
  for (const Image& tile : tiles) {
    require(tile.size() == tiles.front().size(), "tiles of {} x {} and {} x {} pixels", tiles.front().width,
            tiles.front().height, tile.width, tile.height);
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t i = c; i < tile.rgb.size(); i += 3) values.push_back(table[c][tile.rgb[i]]);
    }
  }
  return values;
}

std::int64_t tile_tokens(std::int64_t image_size, std::int64_t patch_size, double down_sample_ratio) {
  if (image_size < 1 || patch_size < 1 || image_size > kLongestTileSide || !(down_sample_ratio > 0) ||
      down_sample_ratio > 1) {
    config_error(
        "pictures: image_size {}, patch_size {}, down_sample_ratio {}; use sides of 1 to {} and a ratio in "
        "(0, 1]",
        image_size, patch_size, down_sample_ratio, kLongestTileSide);
  }
  const double side = static_cast<double>(image_size / patch_size) * down_sample_ratio;
  if (side != std::floor(side) || side < 1) {
    config_error(
        "pictures: image_size {}, patch_size {} and down_sample_ratio {} make {} tokens a side; use sizes that "
        "make a whole number",
        image_size, patch_size, down_sample_ratio, side);
  }
  return static_cast<std::int64_t>(side * side);
}

std::array<std::uint8_t, 3> pad_color(const Channels& mean) {
  std::array<std::uint8_t, 3> color{};
  for (std::size_t c = 0; c < color.size(); ++c) {
    color[c] = static_cast<std::uint8_t>(std::clamp(mean[c] * 255.0, 0.0, 255.0));
  }
  return color;
}

}  // namespace loom::images
