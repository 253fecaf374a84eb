// The user's options of one fully_shard call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "engine/core/dtype.h"
#include "engine/core/shape.h"
#include "sharding/fsdp_axes.h"
#include "sharding/gather_layout.h"
#include "sharding/reshard_after_forward.h"

namespace loom::nn {
class Module;
}
namespace loom::dist {
struct Context;
}

namespace loom::sharding {

// Storage stays in the original dtype; these are the dtypes of compute and communication.
struct MixedPrecisionPolicy {
  std::optional<DType> param_dtype;   // gather and compute; none: the original dtype
  std::optional<DType> reduce_dtype;  // gradient reduction; none: the gradient's dtype
  std::optional<DType> output_dtype;  // floating outputs of the wrapped module; none: unchanged
  bool cast_forward_inputs = true;    // floating inputs of the wrapped module to param_dtype
};

// Shards, their gradients and (through nn::AdamW) the optimizer state are kept in host memory, Device::host_memory():
// the maker of the device chooses its source (NUMA placement and page-locking: offload/host_allocator.h).
// Buffers and ignored parameters stay on the device.
struct CpuOffloadPolicy {
  // Page-locked; gradients are then copied to the host without blocking it. Default false, as in the migration guide.
  bool pin_memory = false;
  // The last backward returns when all gradients are on the host, as in PyTorch. False, with pinned memory: it returns
  // while they are in transit, and a reader of one waits for that one (nn/optim/landing.h).
  bool wait_in_backward = true;
};

struct FullyShardOptions {
  FsdpAxes axes;
  // The axes of modules whose experts ranks share (expert/share_experts.h), in the options of a whole model; none: no
  // experts are shared.
  std::optional<FsdpAxes> expert_axes;
  // How ranks share sequences (context/share_sequences.h), in the options of a whole model; null: each has its own.
  std::shared_ptr<const dist::Context> context;
  // The dim that a parameter is cut on, by its path below the wrapped module; null: dim 0 for all. On another dim the
  // shard axis must divide the size. As shard_placement_fn of PyTorch.
  std::function<int(const std::string& path, const Shape& shape)> shard_dim;
  MixedPrecisionPolicy policy;
  // true, false or a number of ranks, which must divide N. None: true, but false for the root.
  std::optional<ReshardAfterForward> reshard_after_forward;
  // Identities (Tensor::id) of parameters that are neither sharded, nor moved, nor reduced.
  std::unordered_set<const void*> ignored_params;
  GatherLayout layout = GatherLayout::kBuffered;
  std::optional<CpuOffloadPolicy> cpu_offload;  // none: everything is on the device
  // A module around the wrapped ones, whose forward gathers and reshards instead of theirs, as in MindSpeed-MM:
  // the groups of one such module gather together. Inputs and outputs are cast there too. Null: their own forward.
  nn::Module* hook_module = nullptr;
};

}  // namespace loom::sharding
