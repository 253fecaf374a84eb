#include "engine/nn/stored_dtype.h"

#include <unordered_map>

namespace loom::nn {

void store_parameters_in(Module& root, DType dtype) {
  std::unordered_map<const void*, Tensor> made;
  std::vector<Tensor> originals;  // keeps identities apart while slots change
  for (auto& [path, slot] : root.named_slots()) {
    const Tensor original = slot->value;
    if (!original.is_meta() || original.dtype() != DType::kF32) continue;
    originals.push_back(original);
    Tensor& stored = made[original.id()];
    if (!stored.defined()) {
      stored = Tensor::meta(original.shape(), dtype, path);
      stored.set_requires_grad(original.requires_grad());
    }
    slot->value = stored;
  }
}

}  // namespace loom::nn
