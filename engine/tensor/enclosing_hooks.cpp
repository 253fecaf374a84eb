#include "engine/tensor/enclosing_hooks.h"

#include "engine/core/error.h"
#include "engine/tensor/tape_state.h"

namespace loom::autograd {
namespace {

// Takes the innermost hooks off for a scope.
class WithoutInnermost {
 public:
  WithoutInnermost() : hooks_(TapeState::current().saved_hooks) {
    require(!hooks_.empty(), "saving past the innermost saved-tensor hooks, and none are in force");
    innermost_ = std::move(hooks_.back());
    hooks_.pop_back();
  }
  ~WithoutInnermost() { hooks_.push_back(std::move(innermost_)); }
  WithoutInnermost(const WithoutInnermost&) = delete;
  WithoutInnermost& operator=(const WithoutInnermost&) = delete;

 private:
  std::vector<SavedTensorHooks>& hooks_;
  SavedTensorHooks innermost_;
};

}  // namespace

SavedTensor save_with_enclosing_hooks(const Tensor& tensor) {
  const WithoutInnermost scope;
  return SavedTensor(tensor);
}

}  // namespace loom::autograd
