// What a job needs so that ranks can share sequences (context parallelism, sequence parallelism), and its loaders then.
//
// Errors   ConfigError for objectives and losses that are not of single tokens.
#pragma once

#include "engine/train/inputs.h"

namespace loom::train {

// Nothing where every rank has sequences of its own.
void split_sequences(const TrainSections& arguments, TrainingInputs& inputs);

}  // namespace loom::train
