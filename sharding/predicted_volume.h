// The predicted half of axis_volume.h, formulas and all. Private to sharding.
#pragma once

#include <span>
#include <vector>

#include "sharding/axis_volume.h"

namespace loom::sharding {

// Axes of one rank are left out; received_bytes are 0.
std::vector<AxisVolume> predicted_volume(nn::Module& model, std::span<const RecomputedModule> recomputed,
                                         const StepShape& shape);

}  // namespace loom::sharding
