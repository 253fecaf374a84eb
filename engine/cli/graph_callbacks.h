// The callbacks of a plan of a recorded PyTorch model (--model-graph): its modules, its inputs, its loss.
//
// Sizes    --micro-batch-size is the file's B, --seq-length its S; other symbols have the values of the recording.
// Errors   ConfigError for a run, which a recording has no arithmetic for; for sizes that the file does not hold; for a
//          param_dtype that is not the dtype it was recorded in.
#pragma once

#include "engine/train/callbacks.h"

namespace loom::cli {

train::PretrainCallbacks graph_callbacks(const train::TrainSections& arguments);

}  // namespace loom::cli
