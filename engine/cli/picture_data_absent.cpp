#include "engine/cli/picture_data.h"
#include "engine/core/error.h"

namespace loom::cli {

data::DataLoaders picture_loaders(const train::TrainSections&) {
  config_error("--mm-data is for a program built with LOOM_IMAGES=ON, and this one is not; build it with that option");
}

}  // namespace loom::cli
