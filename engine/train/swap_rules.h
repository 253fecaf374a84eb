// Rules for activation swap beside the rest of a job. Private to engine/train.
//
// Errors   ConfigError, on every rank alike.
#pragma once

#include "engine/train/inputs.h"

namespace loom::train {

void check_swap(const offload::SwapOptions& swap, const TrainingInputs& inputs);

}  // namespace loom::train
