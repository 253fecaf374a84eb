// Megatron's distributed optimizer by FSDP2's means, where no sharding is given. Private to engine/cli.
//
// Megatron  keeps parameters whole, adds the gradients of all micro-batches up, reduces them once a step, and shares
//           out the optimizer's state.
// Here      sharding_size: auto with reshard_after_forward, reshard_after_backward and sync_each_batch false: the same
//           bytes move, the same state stays. In a pipeline stages are reduced once anyway. --bf16 gives param_dtype
//           bf16 and reduce_dtype fp32, as Megatron has them.
// Groups    the layers with --overlap-grad-reduce or --overlap-param-gather; without these the model is one group, so
//           nothing overlaps.
#pragma once

#include <string>
#include <vector>

#include "engine/job/job.h"

namespace loom::cli {

// Whether the flag is given.
bool has_distributed_optimizer(const job::Job& job);

// What to say of the flag where a file says how to shard. Else empty.
std::vector<std::string> refused_distributed_optimizer(const job::Job& job);

// Puts it into the job, and a line with the keys into written.told. Nothing where a file says how to shard, or where
// --swap-optimizer takes the flag.
void settle_distributed_optimizer(job::Job& job, bool users_program);

}  // namespace loom::cli
