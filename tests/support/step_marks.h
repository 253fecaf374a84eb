// Marks of a step that tests set themselves (device::Mark).
#pragma once

#include "engine/device/recording.h"

namespace loom::test {

inline constexpr device::MarkKind kForwardMark{"F"};     // a module's own forward begins
inline constexpr device::MarkKind kForwardEndMark{"f"};  // and ends
// As of train/step/marks.h.
inline constexpr device::MarkKind kBackwardMark{"B"};
inline constexpr device::MarkKind kOptimizerMark{"O"};

}  // namespace loom::test
