// BlockCall: one call of a swapped block, from its forward to its backward. Private to offload.
//
// Lifetime  its saved tensors hold it; it refers weakly to the swapped tensors, and to the previous call.
// Threads   the rank's host thread.
#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/tensor/autograd.h"
#include "offload/activation_swap.h"
#include "offload/swapped_tensor.h"

namespace loom::offload {

// A block as its calls see it.
struct BlockFacts {
  SwapBlock block;
  SwapRules rules;
  std::size_t number = 0;
  bool last = false;
  std::vector<const nn::ParamSlot*> parameters;  // below the block
};

class BlockCall : public std::enable_shared_from_this<BlockCall> {
 public:
  // `before`: the call of the block before, in the same forward; may be null.
  BlockCall(std::shared_ptr<const BlockFacts> facts, const nn::Args& args, const std::shared_ptr<BlockCall>& before);

  std::size_t number() const { return facts_->number; }
  // In force while the block runs.
  autograd::SavedTensorHooks hooks();
  // For kSavedInside: tensors saved from enter() to leave() may leave, all others stay. They nest.
  void enter() { ++inside_; }
  void leave() { --inside_; }

 private:
  // Bytes of a storage. Storages are known weakly: an address may be reused.
  struct Place {
    std::weak_ptr<Storage> storage;
    std::int64_t offset_bytes = 0;
    std::int64_t bytes = 0;
    bool is(const Tensor& tensor) const;
  };
  struct Known {
    Place place;
    std::weak_ptr<SwappedTensor> swapped;  // empty: it stays
    std::size_t seen = 0;                  // index in SwapWatch::seen
  };
  // The entry in the graph.
  struct Out;
  struct Stays;

  static Place place_of(const Tensor& tensor);
  std::any pack(const Tensor& tensor);
  Tensor unpack(const std::any& packed);
  bool may_leave(const Tensor& tensor) const;
  bool is_chosen(const Tensor& tensor, std::size_t ordinal) const;
  Known& known(const Tensor& tensor);
  void note_saved(const Tensor& tensor, Known& known);
  void note_wanted(std::size_t seen);
  void begin_saving();
  void begin_backward();
  void release();
  void fetch();

  const std::shared_ptr<const BlockFacts> facts_;
  const std::weak_ptr<BlockCall> before_;
  Place first_argument_;
  std::vector<std::weak_ptr<Storage>> other_arguments_;
  std::vector<Known> known_;
  int inside_ = 0;
  bool saved_ = false;
  bool came_back_ = false;
};

}  // namespace loom::offload
