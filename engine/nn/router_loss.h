// RouterLoss: attached to a causal model whose routers have a load-balancing loss in training.
//
// Call     with the named argument router_loss = true the model returns a list: what it returns otherwise, and the
//          loss of its routers, one element without the coefficient. The loss of a step is then
//          cross-entropy + coefficient * loss of the routers.
// Tokens   the loss is of all tokens of the call, over all sparse layers together, and is not linear in them: the mean
//          over micro-batches or ranks differs from the loss of the whole batch.
#pragma once

#include <string_view>

#include "engine/nn/module.h"

namespace loom::nn {

struct RouterLoss {
  double coefficient = 0;
};

// Throws ConfigError if the model has one: `loss`, "a preference loss", does not add it.
void refuse_router_loss(const Module& model, std::string_view loss);

}  // namespace loom::nn
