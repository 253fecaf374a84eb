#include "sharding/cut_parameter.h"

namespace loom::sharding {
namespace {

// The box of the slot's parameter.
Tensor box_of(const nn::ParamSlot& slot, const nn::ShardSpec& shard, const Shape& box) {
  const nn::LocalTensor whole = slot.local();
  Tensor cut;
  if (whole.value.is_meta()) {
    cut = Tensor::meta(box, whole.value.dtype(), slot.name);
  } else {
    cut = Tensor::empty(box, whole.value.dtype());
    nn::copy_box({cut, shard}, whole, slot.name);
  }
  cut.set_requires_grad(whole.value.requires_grad());
  return cut;
}

}  // namespace

void cut_parameter(const NamedSlots& slots, const nn::ParamSlot& slot, const nn::ShardSpec& shard, const Shape& box) {
  const Tensor cut = box_of(slot, shard, box);
  const void* whole = slot.value.id();
  for (const auto& [path, other] : slots) {
    if (other->value.id() != whole) continue;
    other->value = cut;
    other->shard = shard;
  }
}

}  // namespace loom::sharding
