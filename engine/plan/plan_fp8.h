// FP8 of a plan: the recipe that flags name, and the layers of the model that it takes (engine/virtual_time/fp8.h).
#pragma once

#include <optional>
#include <string>

#include "engine/virtual_time/profile.h"

namespace loom::nn {
class Module;
}

namespace loom::plan {

// `profile` with the recipe of --fp8-recipe, whose name is known; as it is without one. `gathers`: --fp8-param-gather.
// ConfigError for a device without FP8.
virtual_time::HardwareProfile in_fp8(virtual_time::HardwareProfile profile, const std::optional<std::string>& recipe,
                                     bool gathers);

// `profile`, whose recipe knows the layers of the sharded model.
virtual_time::HardwareProfile with_layers(virtual_time::HardwareProfile profile, nn::Module& model);

}  // namespace loom::plan
