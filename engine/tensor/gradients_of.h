// Gradients of given tensors, as values: what a functional gradient (engine/nn/functional_grad.h) is made of.
//
//   const autograd::FunctionScope scope;             // a graph of its own
//   const Tensor loss = function(x);
//   const autograd::Root root{loss, {}};
//   const std::vector<Tensor> gradients = autograd::gradients_of({&root, 1}, {&x, 1});
//
// Captured  the gradient of an input goes to the result, not into grad(): no leaf accumulates anything, and no
//           post-accumulate hook runs. Only nodes that lead to an input run, and are freed. Tensor hooks on the way
//           run.
// Bits      those of backward(). Each gradient has bytes of its own.
// Refused   a backward() inside, as reentrant recompute runs one: it would accumulate.
// Threads   the rank's host thread.
// Source    torch.autograd.grad.
#pragma once

#include <span>
#include <vector>

#include "engine/tensor/autograd.h"

namespace loom::autograd {

// One gradient for each of `inputs`: leaves that require a gradient, or results of recorded operators, each once.
// Undefined for an input that no root leads to. Roots that require no gradient count as constants.
std::vector<Tensor> gradients_of(std::span<const Root> roots, std::span<const Tensor> inputs);

// While it lives, operators record a graph that ends before it does: the grad mode is on, and saved-tensor hooks from
// outside do not see what is saved.
class FunctionScope {
 public:
  FunctionScope();
  ~FunctionScope();
  FunctionScope(const FunctionScope&) = delete;
  FunctionScope& operator=(const FunctionScope&) = delete;

 private:
  const GradMode grad_mode_;
  bool outer_in_function_ = false;
  std::vector<SavedTensorHooks> outer_hooks_;
};

// Whether a FunctionScope lives.
bool in_function();

}  // namespace loom::autograd
