#include "engine/cli/picture_data.h"
#include "engine/core/error.h"

namespace loom::cli {

namespace {
[[noreturn]] void refuse() {
  config_error("pictures are for a program built with LOOM_IMAGES=ON, and this one is not; build it with that option");
}
}  // namespace

data::DataLoaders picture_loaders(const train::TrainSections&) { refuse(); }
data::DataLoaders planned_pictures(const train::TrainSections&) { refuse(); }
std::filesystem::path picture_model_folder(const train::TrainSections&) { refuse(); }

}  // namespace loom::cli
