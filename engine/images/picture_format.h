// The format of a picture, by its first bytes, and what all decoders check. Private to engine/images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/images/image.h"
#include "engine/images/read_image.h"

namespace loom::images {

enum class PictureFormat : std::uint8_t { kPng, kJpeg, kPnm };

// The bytes of a file, or their beginning; messages call it `name`.
struct PictureBytes {
  std::span<const std::byte> bytes;
  const std::string& name;
};

// ConfigError for an empty file, for a format that is not read, by its name, and for other content, with its first
// bytes.
PictureFormat format_of(const PictureBytes& picture);

// ConfigError unless both sides are at least 1.
void check_sides(const PictureBytes& picture, ImageSize size);
// The same, and for a picture of more than the allowed pixels.
void check_size(const PictureBytes& picture, ImageSize size, const ImageLimits& limits);

// "NAME: truncated: DETAIL; fetch the file again".
[[noreturn]] void refuse_truncated(const PictureBytes& picture, const std::string& detail);

// A picture of `size`, which was checked; its bytes are 0.
Image blank_image(ImageSize size);

}  // namespace loom::images
