// Resizing, cutting and padding of pictures, byte for byte as Pillow's Image.resize, crop and paste.
//
// Smooth   bilinear and bicubic (a = -0.5): two passes with 8 bits between them. A weight is a fixed-point number of 22
//          bits. When a side shrinks, the filter is as much wider (antialiasing). A pass whose side keeps its length
//          is left out.
// Order    along rows first; along columns first where the height shrinks by more than twice the pixels of the width.
//          Before Pillow 13 rows were always first; the bytes differ by some steps at hard edges.
// Nearest  the source pixel at the centre of each pixel.
// Threads  any number at once.
// Errors   ConfigError for a size below 1 or of more than kMostPixels; InvariantError for a picture whose bytes do not
//          fit its size.
// Source   behaviour of Pillow 13.0.0, compared byte for byte (docs/images.md).
#pragma once

#include <array>
#include <cstdint>

#include "engine/images/image.h"

namespace loom::images {

enum class Filter : std::uint8_t { kNearest, kBilinear, kBicubic };

Image resize(const Image& image, std::int64_t width, std::int64_t height, Filter filter);

// The rectangle of `size` whose upper left corner is (left, top). InvariantError unless it lies in the picture.
Image crop(const Image& image, std::int64_t left, std::int64_t top, ImageSize size);

// The picture in the middle of a square as long as its longer side, on `color`; an odd rest goes to the right or to
// the bottom.
Image pad_to_square(const Image& image, const std::array<std::uint8_t, 3>& color);

}  // namespace loom::images
