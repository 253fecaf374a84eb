// Named tensors of the host from one rank of a pipeline to another. Private to engine/train/pipeline.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/tensor/tensor.h"

namespace loom::train {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Both block until the other side has come.
void send_tensors(comm::ProcessGroup& ranks, int to, const NamedTensors& tensors);
NamedTensors received_tensors(comm::ProcessGroup& ranks, int from);

}  // namespace loom::train
