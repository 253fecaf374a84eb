// PGM and PPM with binary samples (P5, P6). Private to engine/images.
#pragma once

#include "engine/images/picture_format.h"

namespace loom::images {

Image decode_pnm(const PictureBytes& picture, const ImageLimits& limits);
ImageSize pnm_size(const PictureBytes& picture);

}  // namespace loom::images
