// Evaluating: a model without dropout in this scope; afterwards its training mode is restored. Private to models.
#pragma once

#include "engine/nn/module.h"

namespace loom::models {

class Evaluating {
 public:
  explicit Evaluating(nn::Module& model) : model_(model), was_training_(model.training()) {
    if (was_training_) model_.eval();
  }
  ~Evaluating() {
    if (was_training_) model_.train();
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  nn::Module& model_;
  const bool was_training_;
};

}  // namespace loom::models
