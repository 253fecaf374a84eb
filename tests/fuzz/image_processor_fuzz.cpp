// Preprocessor configurations: options that are read make patches or tiles of a picture, or are refused.
#include "engine/images/processor_config.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(image_processor) {
  using namespace loom;
  return fuzz::answered_or_refused([&] {
    const images::ImageProcessor processor = images::parse_image_processor(fuzz::text_of(data, size), "p.json");
    const images::ImageSize picture{640, 480};
    if (const auto* patches = processor.patches()) {
      if (images::grid_of(picture, *patches).h < 1) fuzz::found("a grid without rows", processor.type);
    } else if (images::tile_count(picture, *processor.tiles()) < 1) {
      fuzz::found("no tiles", processor.type);
    }
    images::value_table(processor.mean, processor.std);
  });
}
