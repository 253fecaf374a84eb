// ParamGroup: the parameters that are gathered and reduced together.
//
// States    Sharded -> Gathering (issued, not waited for) -> Unsharded -> Sharded; with an integer
//           reshard_after_forward k, Unsharded -> ShardedPostForward after forward, from which the next gather is over
//           k ranks. Verbs may be repeated: a verb whose work is done does nothing.
// Training  Idle, Forward, PreBackward, PostBackward; the effect of a gather issued from elsewhere (prefetch) depends
//           on it.
// Shapes    N ranks on the shard axis; the gather moves gather_input_bytes() per rank, the reduction N times the padded
//           shards.
// Events    in host order, marked in the device's trace: AG gather issued, W waited for and usable, RE resharded, REPF
//           resharded to the post-forward shards, RS/RSAR reduction issued, DROP an unused gather
//           freed.
// Threads   the rank's host thread; device work is ordered by streams.
// Errors    DeviceError, CommError; a broken precondition is an InvariantError.
// Source    PyTorch FSDP2, _fsdp_param_group.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sharding/fsdp/comm_context.h"
#include "sharding/fsdp/gather.h"
#include "sharding/fsdp/param.h"
#include "sharding/policy.h"
#include "sharding/reshard_after_forward.h"

namespace loom::sharding {

enum class TrainingState : std::uint8_t { kIdle, kForward, kPreBackward, kPostBackward };

// The switches of the FSDPModule.set_* calls. Read when the work they affect begins.
struct GroupSwitches {
  bool reduce_grads = true;
  bool all_reduce_grads = true;  // false: HSDP keeps the reduce-scattered row instead (see reduce.h)
  // Resolved on the shard group: a number of ranks is strictly between 1 and N.
  ReshardAfterForward reshard_after_forward = true;
  bool reshard_after_backward = true;
  bool unshard_in_backward = true;
  std::optional<double> gradient_divide_factor;  // none: the number of ranks
  bool force_sum_reduction = false;
};

class ParamGroup {
 public:
  // `reshard`: resolved on the shard group. Parts are kept after forward only if it is a number of ranks.
  ParamGroup(std::vector<std::unique_ptr<Param>> params, const FullyShardOptions& options, ReshardAfterForward reshard);

  // --- constant after lazy_init() ---
  const std::string& path() const { return path_; }
  const std::vector<std::unique_ptr<Param>>& params() const { return params_; }
  const FsdpAxes& axes() const { return axes_; }
  std::int64_t gather_input_bytes() const { return gather_->input_bytes(); }

  // Once, at the root's first forward, in the same order on all ranks: names the group, checks dtypes and that no
  // parameter is left on the meta device, nor under offload on the device (ConfigError naming it), and prepares the
  // gather (collective).
  void lazy_init(const std::string& path, CommContext& comm);

  // --- verbs ---
  // Starts the gather. Does not block the host. Does nothing unless Sharded, or in backward when unshard_in_backward
  // is off.
  void unshard();
  // Makes the whole parameters usable. Blocks the host until the gather is done. Does nothing unless Gathering.
  void wait_for_unshard();
  void reshard();
  // Drops an unused gather. Blocks the host until it is done. Does nothing unless
  // Gathering.
  void drop_gather();

  // --- called by the hooks of the module ---
  void pre_forward();
  void post_forward();
  void pre_backward(bool default_prefetch);
  void post_backward();
  // End of the whole backward: reductions are complete for the compute stream, offloaded gradients are on the
  // host (blocks it), unused gathers are dropped.
  void finalize_backward();
  // Issues the gather on behalf of another group's forward or backward.
  void prefetch(TrainingState on_behalf_of);

  TrainingState training_state() const { return training_state_; }
  void set_training_state(TrainingState state) { training_state_ = state; }
  bool is_unsharded() const { return state_ == ShardedState::kUnsharded; }
  bool is_sharded() const { return state_ == ShardedState::kSharded; }

  // --- communication, as FSDPModule.set_*; see fully_shard.h. A gather in flight is dropped. ---
  void set_custom_all_gather(std::shared_ptr<AllGather> comm);
  void set_custom_reduce_scatter(std::shared_ptr<ReduceScatter> comm);
  void set_memory_from_process_group(bool on);
  void set_all_reduce_hook(AllReduceHook hook, device::Stream* stream);
  bool has_custom_comm() const { return custom_all_gather_ != nullptr || custom_reduce_scatter_ != nullptr; }
  bool has_memory_from_process_group() const { return memory_from_process_group_; }
  // ", custom all-gather" and the like; empty if none of these is set.
  std::string describe_comm() const;

  const GroupSwitches& switches() const { return switches_; }
  // InvariantError for a number of ranks other than at construction.
  void set_switches(const GroupSwitches& switches);
  // Back to the setting at construction; true if that is never.
  ReshardAfterForward reshard_when_on() const { return reshard_.frees() ? reshard_ : ReshardAfterForward::always(); }

 private:
  enum class ShardedState : std::uint8_t { kSharded, kShardedPostForward, kGathering, kUnsharded };

  void check_dtypes() const;
  void check_place(const Param& param) const;
  comm::Axis post_forward_axis() const;
  void make_comm();
  void make_gathers();
  void renew_comm();
  void reshard_to_post_forward();
  void drop_post_forward_shards();
  void prefetch_previous();
  std::string reduction_tag(const std::vector<Param*>& params) const;
  void issue_gather(bool prefetched);
  void reduce(std::vector<Param*> params, std::vector<Tensor> grads);
  void mark(device::MarkKind kind, std::int64_t bytes = 0, DType dtype = DType::kF32, std::int64_t count = 0,
            bool prefetched = false);

  const FsdpAxes axes_;
  const GatherLayout layout_;
  std::vector<std::unique_ptr<Param>> params_;
  std::string path_;
  CommContext* comm_ = nullptr;
  std::unique_ptr<Gather> gather_;
  const ReshardAfterForward reshard_;  // as at construction
  GroupSwitches switches_;
  std::unique_ptr<Gather> post_forward_gather_;  // null unless reshard_ is a number of ranks
  Gather* pending_ = nullptr;                    // the gather issued last

  std::shared_ptr<AllGather> custom_all_gather_;  // the user's; null: none
  std::shared_ptr<ReduceScatter> custom_reduce_scatter_;
  bool memory_from_process_group_ = false;
  GroupComm comm_in_use_;  // the user's, or the process group's in its own memory; null: the process group's
  AllReduceHook all_reduce_hook_;
  device::Stream* all_reduce_hook_stream_ = nullptr;

  ShardedState state_ = ShardedState::kSharded;
  TrainingState training_state_ = TrainingState::kIdle;
  std::vector<std::size_t> post_forward_indices_;  // places in the post-forward order, one per forward
  device::Event reduced_;                          // this group's last reduction
  Tensor partial_;                                 // the row kept while all_reduce_grads is off
};

}  // namespace loom::sharding
