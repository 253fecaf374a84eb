#include "engine/tensor/outer_hooks.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/tensor/tape_state.h"

namespace loom::autograd {

OuterHooksScope::OuterHooksScope() {
  auto& hooks = TapeState::current().saved_hooks;
  require(!hooks.empty(), "saved-tensor hooks are left out while none are in force");
  innermost_ = std::move(hooks.back());
  hooks.pop_back();
}

OuterHooksScope::~OuterHooksScope() { TapeState::current().saved_hooks.push_back(std::move(innermost_)); }

}  // namespace loom::autograd
