#include "offload/block_call.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/tensor/outer_hooks.h"

namespace loom::offload {

using device::StreamId;

struct BlockCall::Out {
  std::shared_ptr<SwappedTensor> tensor;
  Shape shape;  // a view of the same bytes may be saved too
  DType dtype;
  std::size_t seen;
};

struct BlockCall::Stays {
  static constexpr std::size_t kUnseen = static_cast<std::size_t>(-1);
  std::shared_ptr<autograd::SavedTensor> tensor;
  std::size_t seen = kUnseen;
};

BlockCall::BlockCall(std::shared_ptr<const BlockFacts> facts, const nn::Args& args,
                     const std::shared_ptr<BlockCall>& before)
    : facts_(std::move(facts)), before_(before) {
  const bool has_first = !args.positional.empty() && args.positional.front().is_tensor();
  check_model(
      has_first || facts_->rules.what != SwapWhat::kFirstArgument,
      "swap of '{}' takes its first argument, and it was called without a tensor in front; list modules that are "
      "called with their hidden state first",
      facts_->block.path);
  const void* first = nullptr;
  if (has_first) {
    first_argument_ = place_of(args.positional.front().tensor());
    first = args.positional.front().tensor().storage().get();
  }
  for (const Tensor& tensor : args.tensors()) {
    if (tensor.defined() && tensor.storage().get() != first) other_arguments_.push_back(tensor.storage());
  }
}

BlockCall::Place BlockCall::place_of(const Tensor& tensor) {
  return {tensor.storage(), tensor.offset_elems() * element_bytes(tensor.dtype()), tensor.nbytes()};
}

bool BlockCall::Place::is(const Tensor& tensor) const {
  return storage.lock() == tensor.storage() && offset_bytes == tensor.offset_elems() * element_bytes(tensor.dtype()) &&
         bytes == tensor.nbytes();
}

autograd::SavedTensorHooks BlockCall::hooks() {
  return {[self = shared_from_this()](const Tensor& tensor) { return self->pack(tensor); },
          [self = shared_from_this()](const std::any& packed) { return self->unpack(packed); }};
}

bool BlockCall::may_leave(const Tensor& tensor) const {
  if (facts_->rules.what == SwapWhat::kSavedInside && inside_ == 0) return false;
  const auto& storage = tensor.storage();
  if (storage->place() != loom::Place::kDevice || !storage->allocated() || tensor.nbytes() == 0) return false;
  const auto is_same = [&](const std::weak_ptr<Storage>& other) { return other.lock() == storage; };
  if (std::ranges::any_of(other_arguments_, is_same)) return false;
  return std::ranges::none_of(facts_->parameters, [&](const nn::ParamSlot* slot) {
    return slot->value.defined() && slot->value.storage() == storage;
  });
}

bool BlockCall::is_chosen(const Tensor& tensor, std::size_t ordinal) const {
  if (facts_->last) return false;
  switch (facts_->rules.what) {
    case SwapWhat::kFirstArgument:
      return first_argument_.is(tensor);
    case SwapWhat::kSavedInside:
      return true;
    case SwapWhat::kChosen:
      return std::ranges::find(facts_->block.ordinals, static_cast<std::int64_t>(ordinal)) !=
             facts_->block.ordinals.end();
  }
  return false;
}

void BlockCall::note_saved(const Tensor& tensor, Known& known) {
  if (facts_->rules.watch == nullptr) return;
  auto& seen = facts_->rules.watch->seen;
  known.seen = seen.size();
  seen.push_back({.block = facts_->block.path,
                  .ordinal = static_cast<std::int64_t>(known_.size()) - 1,
                  .bytes = tensor.nbytes(),
                  .what = tensor.storage()->what(),
                  .last_block = facts_->last,
                  .saved = device::Device::current().log().last_of(StreamId::kCompute)});
}

void BlockCall::note_wanted(std::size_t index) {
  if (facts_->rules.watch == nullptr || index >= facts_->rules.watch->seen.size()) return;
  SeenTensor& seen = facts_->rules.watch->seen[index];
  if (seen.wanted < 0) seen.wanted = device::Device::current().log().last_of(StreamId::kCompute);
}

BlockCall::Known& BlockCall::known(const Tensor& tensor) {
  const auto found = std::ranges::find_if(known_, [&](const Known& k) { return k.place.is(tensor); });
  if (found != known_.end()) return *found;
  Known& added = known_.emplace_back();
  added.place = place_of(tensor);
  added.seen = Stays::kUnseen;
  note_saved(tensor, added);
  return added;
}

std::any BlockCall::pack(const Tensor& tensor) {
  begin_saving();
  Stays stays;
  if (may_leave(tensor)) {
    Known& place = known(tensor);
    stays.seen = place.seen;
    auto swapped = place.swapped.lock();
    if (swapped == nullptr && is_chosen(tensor, static_cast<std::size_t>(&place - known_.data()))) {
      swapped = std::make_shared<SwappedTensor>(tensor, facts_->block.path, facts_->rules.pin_memory);
      place.swapped = swapped;
    }
    if (swapped != nullptr) return Out{std::move(swapped), tensor.shape(), tensor.dtype(), stays.seen};
  }
  const autograd::OuterHooksScope outer;
  stays.tensor = std::make_shared<autograd::SavedTensor>(tensor);
  return stays;
}

Tensor BlockCall::unpack(const std::any& packed) {
  begin_backward();
  if (const auto* stays = std::any_cast<Stays>(&packed)) {
    note_wanted(stays->seen);
    return stays->tensor->unpack();
  }
  const auto& out = std::any_cast<const Out&>(packed);
  note_wanted(out.seen);
  const Tensor tensor = out.tensor->get();
  if (tensor.shape() == out.shape && tensor.dtype() == out.dtype) return tensor;
  return {tensor.storage(), tensor.offset_elems() * element_bytes(tensor.dtype()) / element_bytes(out.dtype), out.shape,
          out.dtype};
}

// The first tensor that a block saves: the block before is done with its own.
void BlockCall::begin_saving() {
  if (std::exchange(saved_, true)) return;
  if (const auto before = before_.lock()) before->release();
}

void BlockCall::begin_backward() {
  if (std::exchange(came_back_, true)) return;
  fetch();
  if (const auto before = before_.lock()) before->fetch();
}

void BlockCall::release() {
  std::vector<std::shared_ptr<SwappedTensor>> leaving;
  for (const Known& known : known_) {
    if (auto swapped = known.swapped.lock()) leaving.push_back(std::move(swapped));
  }
  if (leaving.empty()) return;
  // The copies are in order: the last one's end is the end of all.
  device::Device::current().stream(StreamId::kCompute).wait(leaving.back()->left());
  for (const auto& swapped : leaving) swapped->release();
}

void BlockCall::fetch() {
  for (const Known& known : known_) {
    if (const auto swapped = known.swapped.lock()) swapped->fetch();
  }
}

}  // namespace loom::offload
