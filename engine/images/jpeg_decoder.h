// JPEG, by libjpeg-turbo. Private to engine/images.
#pragma once

#include <optional>

#include "engine/images/picture_format.h"

namespace loom::images {

Image decode_jpeg(const PictureBytes& picture, const ImageLimits& limits);
// Nothing when the bytes end before the size.
std::optional<ImageSize> jpeg_size(const PictureBytes& picture);

}  // namespace loom::images
