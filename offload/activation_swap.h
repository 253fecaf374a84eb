// Swap of activations: saved tensors of modules move to the host in forward, and return before backward needs them.
//
// Blocks    a list of modules, numbered in its order, that run one after the other (decoder layers). SwapWhat selects
//           the tensors that leave, of those a block saves for backward. The last block's stay: it needs them at once.
// Stay      always: parameters and views of them, tensors without bytes, tensors that are not on the device, and a
//           block's arguments after the first (tables and masks that all blocks share).
// Forward   a tensor that leaves is copied on the D2H stream behind an event of the compute stream. Its bytes are freed
//           when the next block saves its first tensor; compute waits for the copies then. Other holders of the
//           tensor keep its bytes.
// Backward  the first request for a saved tensor of a block fetches all tensors of this block that are out, and behind
//           them the whole block before (H2D stream, after the compute work so far). Compute waits for a copy before
//           its tensor is used.
// Objects   every call of a block has its own record, which its saved tensors hold: any number of forwards may precede
//           a backward. A call follows the one before it unless its number is smaller, which begins a new
//           forward; calls of one number belong to a block that runs a few rows at a time (nn::chunk_mbs).
// Order     from the inside out: recompute, swap, sharding. A block that is recomputed saves what its checkpoint keeps.
//           Calls without a graph (evaluation, the first forward of a reentrant recompute around the block) swap
//           nothing.
// Numbers   a tensor of a block: 0, 1, ... in the order in which one call first saves tensors that may leave.
//           They are the same in every call and in a dry run, as long as shapes and control flow are.
// Memory    on the device as activations; on the host in Device::host_memory(), as activations, pinned if requested.
// Bits      tensors return with the same bytes.
// Errors    ConfigError: a block without forward, one that is swapped twice. ModelError: a block of kFirstArgument that
//           is called without a tensor in front; a tensor that was written to after it was saved. DeviceError if the
//           host has no memory, with the owner, the size, and the bytes already there.
// Threads   the rank's host thread.
// Source    MindSpeed-MM's activation offload (kFirstArgument), MindSpeed's swap-attention (kSavedInside), smart-swap
//           (kChosen).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/module.h"

namespace loom::offload {

enum class SwapWhat : std::uint8_t {
  kFirstArgument,  // the block's first argument, if it is saved: for a recomputed block, all that is kept
  kSavedInside,    // all tensors that the modules `inside` save
  kChosen,         // the tensors numbered in `ordinals`
};

struct SwapBlock {
  std::string path;  // for messages, and the subject of copies in a recording
  nn::Module* module = nullptr;
  std::vector<nn::Module*> inside = {};     // kSavedInside: the block's modules
  std::vector<std::int64_t> ordinals = {};  // kChosen
};

// A tensor that a watched block saved, and that may leave.
struct SeenTensor {
  std::string block;
  std::int64_t ordinal = 0;
  std::int64_t bytes = 0;
  std::string what;          // its storage's name
  bool last_block = false;   // never leaves
  std::int64_t saved = -1;   // number of the compute stream's last entry in the device's log (issue_log.h) then
  std::int64_t wanted = -1;  // the same when backward requested it; -1: not yet
};

// The tensors that blocks save, in order of time. For kChosen.
class SwapWatch {
 public:
  std::vector<SeenTensor> seen;
};

struct SwapRules {
  SwapWhat what = SwapWhat::kFirstArgument;
  bool pin_memory = false;
  std::shared_ptr<SwapWatch> watch = nullptr;  // may be null
};

// From now on calls of the blocks swap. The modules outlive their calls' graphs.
void swap_activations(std::span<const SwapBlock> blocks, const SwapRules& rules);
// Whether a module is a block of any kind.
bool is_swapped(const nn::Module& module);

class BlockCall;

// While it lives, saved tensors count as saved by `module`, if that is inside a running block (SwapBlock::inside):
// for code that keeps tensors for a module outside of its call, as recompute keeps the argument of a norm. A call of
// the module has its own instance.
class SavingInside {
 public:
  explicit SavingInside(const nn::Module& module);
  ~SavingInside();
  SavingInside(const SavingInside&) = delete;
  SavingInside& operator=(const SavingInside&) = delete;

 private:
  std::vector<std::shared_ptr<BlockCall>> calls_;
};

}  // namespace loom::offload
