// Saving past the innermost saved-tensor hooks: for hooks that act on some tensors and leave the others to the hooks
// around them.
#pragma once

#include "engine/tensor/autograd.h"

namespace loom::autograd {

// `tensor` as it would be saved without the innermost hooks. In a `pack` the innermost hooks are its own.
// Precondition: a SavedTensorHooksScope is in force.
SavedTensor save_with_enclosing_hooks(const Tensor& tensor);

}  // namespace loom::autograd
