#include "engine/core/error.h"
#include "engine/talk/picture_model.h"

namespace loom::talk {

std::unique_ptr<PictureModel> picture_model(const std::filesystem::path&, const Words&) {
  config_error("pictures are for a program built with LOOM_IMAGES=ON, and this one is not; build it with that option");
}

}  // namespace loom::talk
