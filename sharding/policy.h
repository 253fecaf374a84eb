// What a user chooses for one fully_shard call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/comm/mesh.h"
#include "engine/core/dtype.h"

namespace loom::sharding {

// Storage stays in the original dtype; these are the dtypes of compute and communication.
struct MixedPrecisionPolicy {
  std::optional<DType> param_dtype;   // gather and compute; none: the original dtype
  std::optional<DType> reduce_dtype;  // gradient reduction; none: the gradient's dtype
  std::optional<DType> output_dtype;  // floating outputs of the wrapped module; none: as they are
  bool cast_forward_inputs = true;    // floating inputs of the wrapped module to param_dtype
};

// How gathered parameters are laid out. The order of events is the same.
enum class GatherLayout : std::uint8_t {
  kBuffered,  // a gather buffer, then copied out: PyTorch's bytes
  kFast,      // straight into the parameters, or the peers' own memory where ranks share it
};

struct FullyShardOptions {
  std::shared_ptr<const comm::DeviceMesh> mesh;
  MixedPrecisionPolicy policy;
  // True: free after forward and gather again in backward. None: true, but false for the root.
  std::optional<bool> reshard_after_forward;
  GatherLayout layout = GatherLayout::kBuffered;
};

}  // namespace loom::sharding
