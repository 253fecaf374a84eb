#include "engine/core/error.h"
#include "engine/talk/picture_prompt.h"

namespace loom::talk {

PicturePrompt picture_prompt(const std::filesystem::path&, const std::vector<std::filesystem::path>&,
                             const std::string&, const Words&) {
  config_error("--image is for a program built with LOOM_IMAGES=ON, and this one is not; build it with that option");
}

}  // namespace loom::talk
