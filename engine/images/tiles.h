// Tiles: a picture as the squares that InternVL's vision tower reads.
//
// Grid     of all (columns, rows) with min_tiles <= columns * rows <= max_tiles the one whose ratio is nearest to the
//          picture's. They are tried by product, then by columns. A tie goes to the later one if the picture has more
//          than half of that grid's pixels.
// Picture  resized to the grid's size without keeping its ratio, then cut row by row. With use_thumbnail and more than
//          one tile, the whole picture is one more tile.
// Threads  any number at once.
// Errors   ConfigError for options that make no tiles.
// Source   InternVL's dynamic preprocessing; the same as transformers' GotOcr2ImageProcessor with crop_to_patches.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/images/image.h"
#include "engine/images/normalise.h"
#include "engine/images/resize.h"

namespace loom::images {

struct TileOptions {
  std::int64_t image_size = 448;  // the side of a tile, in pixels
  std::int64_t min_tiles = 1;
  std::int64_t max_tiles = 12;  // 1: the picture is one tile
  bool use_thumbnail = true;
  Filter filter = Filter::kBicubic;
};

// InternVL's own keys: a picture is one tile unless dynamic_image_size.
struct DynamicTiles {
  bool dynamic_image_size = false;
  bool use_thumbnail = false;
  std::int64_t min_dynamic_patch = 1;
  std::int64_t max_dynamic_patch = 6;
};
TileOptions tile_options(const DynamicTiles& keys, std::int64_t image_size, Filter filter = Filter::kBicubic);

// {columns, rows}.
std::array<std::int64_t, 2> tile_grid(ImageSize size, const TileOptions& options);

// The number of tiles, the thumbnail included.
std::int64_t tile_count(ImageSize size, const TileOptions& options);

std::vector<Image> tiles_of(const Image& image, const TileOptions& options);

// [tiles, 3, size, size]: (byte / 255 - mean) / std. All tiles have one size.
std::vector<float> tile_values(std::span<const Image> tiles, const Channels& mean, const Channels& std);

// The tokens of a tile: (image_size / patch_size)^2 * down_sample_ratio^2. ConfigError unless it is a whole number.
std::int64_t tile_tokens(std::int64_t image_size, std::int64_t patch_size, double down_sample_ratio);

// The colour of pad_to_square in InternVL's Pad2Square: mean * 255, rounded down.
std::array<std::uint8_t, 3> pad_color(const Channels& mean);

}  // namespace loom::images
