// Gradients on their way to the host: their order of arrival, and the host's wait for each. An optimizer that updates
// parameters in this order works while later gradients are still arriving; the bits do not depend on the order.
//
// Number   of the copy that brings a gradient, kept with its storage by the issuer of the copy (sharding's reduction).
//          A gradient without number is in its place already, or is not to be waited for here.
// Threads  the rank's host thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/nn/optim/optimizer.h"

namespace loom::nn {

struct Landing {
  std::int64_t number = 0;  // ascending in the order in which the copies were issued
};

// Indices of `gradients`: those without number first, then by number; otherwise in their order.
std::vector<std::size_t> landing_order(std::span<const Tensor> gradients);
// The parameters of a group that have a gradient, in that order.
std::vector<const OptimizedParameter*> in_landing_order(const ParameterGroup& group);
// Blocks the host until a gradient with a number has landed, and notes that as a wait of the host, once. Throws the
// cause when the copy failed.
void wait_until_landed(const Tensor& gradient);

}  // namespace loom::nn
