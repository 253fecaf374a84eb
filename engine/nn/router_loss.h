// RouterLoss: attached to a causal model whose routers have losses of their own.
//
// Call     with the named argument router_loss = true the model returns a list: what it returns otherwise, and one
//          element for each term, without its coefficient. The loss of a step is then
//          cross-entropy + the sum of coefficient * term.
// Terms    Hugging Face's load-balancing loss is of all tokens of the call, over all sparse layers together, and is not
//          linear in them: the mean over micro-batches or ranks differs from the loss of the whole batch. Megatron's
//          losses are means over the sparse layers, and are of training alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"

namespace loom::nn {

struct RouterLoss {
  struct Term {
    std::string name;  // in reports
    double coefficient = 0;
  };
  std::vector<Term> terms;
  bool in_evaluation = true;
};

// Attached to a causal model that is to be called with its targets, since its logits are on several ranks: it returns
// the loss, as with loss_chunk_size.
struct OwnLoss {};

// The losses that a call of the model now has; null: none.
std::shared_ptr<RouterLoss> router_loss_of(const Module& model);

// Throws ConfigError if the model has one: `loss`, "a preference loss", does not add it.
void refuse_router_loss(const Module& model, std::string_view loss);

}  // namespace loom::nn
