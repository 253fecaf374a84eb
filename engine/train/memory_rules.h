// Requirements of the device memory flags on the rest of a job. Private to engine/train.
//
// Errors   ConfigError, on every rank alike.
#pragma once

#include "engine/train/inputs.h"

namespace loom::train {

void check_device_memory(const MemoryOptions& memory, const TrainingInputs& inputs);

}  // namespace loom::train
