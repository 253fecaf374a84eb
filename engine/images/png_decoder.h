// PNG, by libspng. Private to engine/images.
#pragma once

#include "engine/images/picture_format.h"

namespace loom::images {

Image decode_png(const PictureBytes& picture, const ImageLimits& limits);
ImageSize png_size(const PictureBytes& picture);

}  // namespace loom::images
