// OuterHooksScope: for saved-tensor hooks that take only some of the tensors.
//
// While it lives, the innermost pair of saved-tensor hooks is inactive: a saved tensor goes through the enclosing pair,
// or is kept unchanged if there is none. A pack() that leaves a tensor to the others makes a SavedTensor in this scope.
// Precondition: a pair is in force.
// Threads  the rank's host thread.
#pragma once

#include "engine/tensor/autograd.h"

namespace loom::autograd {

class OuterHooksScope {
 public:
  OuterHooksScope();
  ~OuterHooksScope();
  OuterHooksScope(const OuterHooksScope&) = delete;
  OuterHooksScope& operator=(const OuterHooksScope&) = delete;

 private:
  SavedTensorHooks innermost_;
};

}  // namespace loom::autograd
