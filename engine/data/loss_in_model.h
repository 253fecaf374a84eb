// The loss inside the model's forward, as transformers computes it of labels: FSDP's root then returns the loss, and
// its backward begins before that of the loss. Without it the root returns logits, and the loss is behind it.
//
// Order     put_loss_in_model() before the model is wrapped; then forward_with_loss(), once a forward.
// Values    are the same.
// Threads   the rank's host thread.
#pragma once

#include "engine/data/step.h"

namespace loom::data {

// `root` is the module that will be wrapped, `model` the one that is called; they may be the same.
void put_loss_in_model(nn::Module& model, nn::Module& root);

// Calls the model. Its result is the loss if put_loss_in_model() was called, else what `loss_func` takes.
ForwardResult forward_with_loss(nn::Module& model, nn::Args args, LossFunc loss_func);

}  // namespace loom::data
