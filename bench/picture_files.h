// Files of pictures for benchmarks, written by libspng and libjpeg.
#pragma once

#include <cstdio>
#include <string>

#include "engine/images/image.h"

namespace loom::bench {

std::string png_of(const images::Image& image);
// Of quality 90.
std::string jpeg_of(const images::Image& image, bool progressive);

}  // namespace loom::bench
