// Gradient reduction of one group: a reduce-scatter over the shard axis, an all-reduce over the replicate axis.
//
// Letters   N shard axis, M replicate axis, W = N * M. c_p: padded rows of parameter p per rank (chunk.h).
// Layout    the input is N rows; row r holds, for every parameter with a gradient in group order, its zero-padded chunk
//           r. The output is one row; a shard gradient is a view of it at the running padded offset with the rank's own
//           rows.
// Memory    members that read each other's memory reduce the gradients in place (comm/peer_reduction.h), unless
//           the sum divides first or rounds them: the input then only counts on the accounts; no rank copies into it.
// Cost      input N * sum(c_p * row_elems_p) elements in the reduce dtype; a rank receives (N - 1) / N of it, and with
//           M > 1 the all-reduce of one row.
// Partial   with a replicate axis, the all-reduce may be deferred: the row is then kept in the reduce dtype, later rows
//           are added to it on the reduce-scatter stream, and no shard gradient is written until a reduction
//           all-reduces the sum.
// Offload   after the last collective, on its stream, each shard's gradient is copied to host memory. With pinned
//           memory and no earlier gradient there the copy does not block the host, and the gradient's storage makes
//           readers wait for it (Storage::data()); without wait_in_backward it records the order of arrival.
//           Otherwise the host waits for the copy at once; the CPU adds to a gradient that exists already.
//           Whether memory counts as pinned is decided by the policy, not by the system: the order of events is
//           the same everywhere.
// Custom    a ReduceScatter of the user's, or of the process group's memory, gets an output of its own, from which the
//           gradients are copied.
// Hook      runs on the row after the last collective, on the all-reduce stream or one of the user's.
// Averages  over W, whatever the axes: the shard gradients of HSDP(2x2), FSDP(4) and four replicas are equal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "sharding/custom_comm.h"
#include "sharding/fsdp/param.h"
#include "sharding/fsdp_axes.h"

namespace loom::sharding {

// How a reduction divides (PyTorch FSDP2, 2.11): fp32, fp64 and bf16 average in the collective; fp16 divides before and
// after, so that neither the sum overflows nor the gradient vanishes. A custom factor f replaces W.
struct ReducePlan {
  double pre_divide = 1;
  comm::ReduceOp reduce_scatter = comm::ReduceOp::sum();
  comm::ReduceOp all_reduce = comm::ReduceOp::sum();
  double post_divide = 1;
};
ReducePlan plan_reduction(DType reduce_dtype, int shard_size, int replicate_size, std::optional<double> factor,
                          bool force_sum);

// The reduced gradients of a group, before they are divided, cast to the original dtype and given to shards: a row.
struct ReduceOutput {
  void* data = nullptr;
  std::int64_t elems = 0;
  DType dtype = DType::kF32;
};
using AllReduceHook = std::function<void(const ReduceOutput&)>;

struct ReduceContext {
  FsdpAxes axes;  // shared with the work on the streams, which may outlive the model
  device::Device* device = nullptr;
  std::string path;  // of the group, with the parameters that have no gradient: ranks that differ get an error
  std::optional<double> divide_factor;
  bool force_sum = false;
  bool all_reduce = true;                 // false: the row is kept instead (no effect without a replicate axis)
  Tensor partial;                         // the row kept so far; undefined: none
  std::shared_ptr<ReduceScatter> comm;    // null: the process group's
  std::int64_t landing = 0;               // of this reduction among the run's (nn/optim/landing.h)
  AllReduceHook hook;                     // after the last collective; none: empty
  device::Stream* hook_stream = nullptr;  // null: the all-reduce stream
};

// Objects that live until the reduction is over.
struct ReduceState {
  Tensor input;
  Tensor reduced;      // the output in the reduce dtype, if it is kept or goes on into an all-reduce
  device::Event done;  // the shard gradients, or the kept row, are complete
};

// Issues the reduction of `grads` (whole gradients of `params`, all of one dtype; taken over and freed here) and gives
// every shard its `.grad` (added to an existing one), or, if the all-reduce is deferred, none: `reduced` is then the
// row to pass to the next reduction of the same parameters. The values are on the device when `done` is, and on the
// host when Tensor::raw() of the gradient returns. Throws InvariantError if dtypes or the kept row's size differ.
ReduceState reduce_gradients(const ReduceContext& context, const std::vector<Param*>& params,
                             std::vector<Tensor> grads);

}  // namespace loom::sharding
