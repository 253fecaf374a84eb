// Cases of training_parity whose ranks share matrices: axes/tensor of the reference (its README).
#pragma once

#include <string>

#include "engine/device/recording.h"
#include "engine/nn/module.h"
#include "sharding/tensor/share_matrices.h"
#include "tests/support/case_json.h"

namespace loom::test {

struct TensorCase {
  bool sequence_parallel = false;
  bool loss_parallel = true;
  bool compares = false;   // plan and collectives, with those of the case
  CaseJson collectives{};  // of a step, by direction
};

TensorCase read_tensor(const CaseJson& curve);

// The paths that the model's own plan selects. Throws where the case has a plan, and that is another.
sharding::SharedMatrices matrices_of(nn::Module& model, const TensorCase& c, int ranks);

// The placements of a parameter in a case: a list of DTensor's short words, or its long ones in one text.
std::vector<std::string> read_placements(const CaseJson& value);

// As DTensor prints where a parameter is: of its FSDP axis, then of tensor parallelism.
std::vector<std::string> tensor_placements(const nn::ShardSpec& box, const Shape& shape, int shard_dim, int ranks,
                                           bool sequence_parallel);

// What of the collectives of a direction, "forward" or "backward", is not as the case says, or nothing. Left out: the
// cross-entropy's; gathers where key/value heads have copies; backward without sequence parallelism, where torch
// reduces once for each column-parallel layer and we once for a block. Torch sums each norm's gradient by itself; we
// sum the shards of all in one call, those in host memory beside the device.
struct TensorRun {
  bool copies = false;  // of key/value heads
  int dp_shard = 1;
  bool offloads = false;
};
std::string check_tensor_collectives(const device::Recording& recording, const CaseJson& expected, const TensorRun& run,
                                     const std::string& direction);

}  // namespace loom::test
