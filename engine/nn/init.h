// First values of parameters, by global element index: independent of world size, replica and the order of ranks.
//
// Element i (row-major, in the whole parameter) of parameter `path` is drawn from the stream (seed, path). Tied slots
// are one parameter under its first path.
#pragma once

#include <cstdint>

#include "engine/nn/module.h"

namespace loom::nn {

// Gives every parameter that is still on the meta device bytes on the current rank's device (whole: for models that are
// not sharded), keeping ties and requires_grad. Values are undefined until init_weights() or a loader writes them.
void materialize(Module& root);

// Writes the rows held by each slot (global rows from slot.row_begin). Precondition: parameters have bytes.
void init_weights(Module& root, std::uint64_t seed);

}  // namespace loom::nn
