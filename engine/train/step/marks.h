// Marks of a training step (device::Mark).
#pragma once

#include "engine/device/recording.h"

namespace loom::train {

inline constexpr device::MarkKind kBackwardMark{"B"};   // the backward pass begins
inline constexpr device::MarkKind kOptimizerMark{"O"};  // the optimizer's step begins
inline constexpr device::MarkKind kActionMark{"P"};     // a pipeline's action begins: its subject, "2F0"

}  // namespace loom::train
