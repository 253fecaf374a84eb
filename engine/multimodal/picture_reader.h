// PictureReader: what the data of a multimodal model needs of pictures: their sizes in patches, and their patches.
//
// Patches   rows of `values`, each of row_shape(); rows lie in the order in which the vision tower reads them.
// Tokens    a picture takes t h w / merge^2 tokens of the text (token_count). A picture of InternVL is t tiles of h w
//           patches; its rows are tiles.
// Threads   const functions are called by several threads at once.
// Errors    ConfigError naming the file: it cannot be read, is no picture, or its size is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "engine/images/patches.h"

namespace loom::multimodal {

// In patches: frames (pairs of them, or tiles), height, width.
using images::Grid;
using images::Patches;

// InvariantError unless t h w is a multiple of merge^2.
std::int64_t token_count(const Grid& grid, std::int64_t merge_size);

class PictureReader {
 public:
  virtual ~PictureReader() = default;

  // The grid of a picture, from the head of its file. `pictures`: how many the sample has.
  virtual Grid size_of(const std::filesystem::path& picture, std::int64_t pictures) const = 0;
  // The same grid, with the values.
  virtual Patches read(const std::filesystem::path& picture, std::int64_t pictures) const = 0;
  // Of a video, given as its frames in order: at least one.
  virtual Grid size_of_video(std::span<const std::filesystem::path> frames) const = 0;
  virtual Patches read_video(std::span<const std::filesystem::path> frames) const = 0;
  // A white picture of these pixels, treated as one of a file.
  virtual Patches white(std::int64_t width, std::int64_t height) const = 0;
  // The sizes of a row of values: {1176}, or {3, 448, 448} for tiles.
  virtual std::vector<std::int64_t> row_shape() const = 0;
  // Patches along a side that become one token.
  virtual std::int64_t merge_size() const = 0;
};

}  // namespace loom::multimodal
