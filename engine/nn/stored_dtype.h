// The dtype in which a model's parameters are stored; torch's model.to(dtype), before they have bytes.
//
// Threads  the rank's host thread.
#pragma once

#include "engine/nn/module.h"

namespace loom::nn {

// Gives every fp32 parameter that is on the meta device this dtype. Ties and requires_grad stay; buffers keep theirs.
void store_parameters_in(Module& root, DType dtype);

}  // namespace loom::nn
