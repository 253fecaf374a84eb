// Files of pictures: an answer has as many bytes as its size says and becomes patches, in bounded memory.
#include <span>

#include "engine/images/patches.h"
#include "engine/images/read_image.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(image) {
  using namespace loom;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  return fuzz::answered_or_refused([&] {
    const images::Image image = images::decode_image(bytes, "picture", {.max_pixels = 1 << 18});
    if (static_cast<std::int64_t>(image.rgb.size()) != 3 * image.width * image.height) {
      fuzz::found("a picture without all of its bytes", std::to_string(image.rgb.size()));
    }
    const images::PatchOptions options{.min_pixels = 784, .max_pixels = 784 * 16};
    const images::Grid grid = images::grid_of(image.size(), options);
    if (images::patches_of(image, options).grid != grid) fuzz::found("another grid than that of the size", "");
  });
}
