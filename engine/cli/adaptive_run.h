// --adaptive-recompute-device-swap in a run and in a plan. Private to engine/cli.
#pragma once

#include <optional>

#include "engine/plan/adaptive.h"

namespace loom::cli {

// The choice for a step in --adaptive-recompute-device-size MiB, or in the device's memory; nothing without the flag.
// `plans`: without --device-memory, the memory is the profile's; a run requires the flag.
// ConfigError, OutOfMemoryError.
std::optional<plan::AdaptiveChoice> choose_modes(const train::TrainSections& arguments,
                                                 const train::PretrainCallbacks& callbacks,
                                                 const virtual_time::HardwareProfile& profile, bool plans);

// Puts it into the configuration that is read; null for nothing.
train::EditConfig edit_of(const std::optional<plan::AdaptiveChoice>& choice);

}  // namespace loom::cli
