// First values of parameters, by global element index: independent of world size, replica, device and the order of
// ranks.
//
// Element i (row-major, in the whole parameter) of parameter `path` is drawn from the stream (seed, path). Tied slots
// are one parameter under its first path.
//
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "engine/nn/module.h"

namespace loom::nn {

// Identities (Tensor::id) of parameters that have values already and keep them.
using KeptValues = std::unordered_set<const void*>;

// Gives every parameter and buffer that is still on the meta device bytes on the current rank's device (whole: for what
// is not sharded), keeping ties and requires_grad. Values are undefined until init_weights() or a loader writes them;
// persistent buffers are zeros.
void materialize(Module& root);

// Writes the box held by each slot (slot.shard), by the slot's own rule. Precondition: parameters
// have bytes.
void init_weights(Module& root, std::uint64_t seed, const KeptValues& kept = {});

// The box held by one slot, from N(0, std^2); `path` is the parameter's first one from the root of the model.
// Precondition: it has bytes.
void write_normal(const ParamSlot& slot, std::string_view path, std::uint64_t seed, double std);

}  // namespace loom::nn
