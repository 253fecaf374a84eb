// Files of pictures as RGB bytes: the bytes of Pillow's Image.open(path).convert("RGB").
//
// Formats   PNG (1 to 16 bits, grey, palette, RGB, alpha, interlaced), JPEG (baseline, progressive, arithmetic; grey,
//           YCbCr, RGB, CMYK, YCCK), PGM and PPM (P5, P6). The content decides, not the name of the file.
// Alpha     is dropped, not blended. 16-bit RGB keeps the high bytes. CMYK is 255 - ink, as Pillow converts it. The
//           orientation in EXIF and colour profiles change nothing. Of several frames (APNG, MPO) the first is read.
// Refused   by name: 16-bit grey (Pillow clips it to white), GIF, WebP, BMP, TIFF, AVIF, JPEG 2000, plain P1 to P3.
// Stricter  than Pillow: a wrong checksum in any PNG chunk, a JPEG of more than 500 scans.
// Memory    the file, its picture, and 6 bytes a pixel of a progressive JPEG (8 with CMYK). A PNG also keeps up to
//           64 MiB of its texts. Sizes are checked before anything is allocated for the picture.
// Threads   any number at once.
// Errors    ConfigError with the file's name, the defect and the next step. Error if the file changes while it is
//           read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "engine/images/image.h"

namespace loom::images {

struct ImageLimits {
  std::int64_t max_pixels = kMostPixels;  // never more than kMostPixels
  std::int64_t max_file_bytes = std::int64_t{1} << 30;
};

Image read_image(const std::filesystem::path& path, const ImageLimits& limits = {});

// The size alone: of a large file only the beginning is read. There is no limit on the pixels.
ImageSize read_image_size(const std::filesystem::path& path);

// A file's content in memory; messages call it `name`.
Image decode_image(std::span<const std::byte> bytes, const std::string& name, const ImageLimits& limits = {});

}  // namespace loom::images
