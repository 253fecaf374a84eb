// A backward in two parts: first the gradients of inputs, which another rank waits for, later those of everything else
// (zero-bubble pipelines: I and W).
//
//   autograd::RestOfBackward rest = autograd::backward_of_inputs(roots, {&input, 1});
//   send(input.grad());
//   rest.run();   // the gradients of the parameters
//
// Parts    an operator that leads to an input and to parameters runs twice, once for each; what it saved lives until
//          the second. What leads to no input runs in the second part alone; without inputs that is all of it.
// Bits     those of one backward.
// Hooks    of a tensor run once, in the part that reaches it first.
// Threads  the rank's host thread.
#pragma once

#include <memory>
#include <span>

#include "engine/tensor/autograd.h"

namespace loom::autograd {

class RestOfBackward {
 public:
  RestOfBackward();  // nothing to run
  RestOfBackward(RestOfBackward&&) noexcept;
  RestOfBackward& operator=(RestOfBackward&&) noexcept;
  ~RestOfBackward();

  // Once.
  void run();

  struct Parts;  // engine.cpp's

 private:
  friend RestOfBackward backward_of_inputs(std::span<const Root> roots, std::span<const Tensor> inputs);
  explicit RestOfBackward(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

// `inputs`: leaves that require gradients. Their gradients are complete when it returns.
RestOfBackward backward_of_inputs(std::span<const Root> roots, std::span<const Tensor> inputs);

}  // namespace loom::autograd
