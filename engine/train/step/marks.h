// Marks of a training step (device::Mark).
#pragma once

#include "engine/device/recording.h"

namespace loom::train {

inline constexpr device::MarkKind kBackwardMark{"B"};   // the backward pass begins
inline constexpr device::MarkKind kOptimizerMark{"O"};  // the optimizer's step begins

}  // namespace loom::train
