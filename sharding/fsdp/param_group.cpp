#include "sharding/fsdp/param_group.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_path.h"
#include "engine/tensor/autograd.h"
#include "sharding/marks.h"

namespace loom::sharding {

using device::StreamId;

ParamGroup::ParamGroup(std::vector<std::unique_ptr<Param>> params, const FullyShardOptions& options,
                       ReshardAfterForward reshard)
    : axes_(options.axes), layout_(options.layout), params_(std::move(params)), reshard_(reshard) {
  switches_.reshard_after_forward = reshard;
}

void ParamGroup::set_switches(const GroupSwitches& switches) {
  const auto ranks = switches.reshard_after_forward.ranks();
  require(!ranks || ranks == reshard_.ranks(), "group '{}' is switched to keep parts on {} ranks, but made with {}",
          path_, ranks.value_or(0), reshard_.text());
  switches_ = switches;
}

void ParamGroup::lazy_init(const std::string& path, CommContext& comm) {
  path_ = path;
  comm_ = &comm;
  check_dtypes();
  for (const auto& param : params_) {
    check_place(*param);
    if (!param->padded_shard().storage()->allocated()) {
      config_error(
          "parameter '{}' of group '{}' has no values yet; initialise or load the weights before the first forward",
          param->path(), shown_path(path_));
    }
    param->guard_shard(path_);
  }
  make_comm();
  make_gathers();
}

void ParamGroup::make_gathers() {
  std::vector<Param*> params;
  for (const auto& param : params_) params.push_back(param.get());
  const std::shared_ptr<AllGather>& all_gather = comm_in_use_.all_gather;
  device::Device& device = *comm_->device;
  gather_ = Gather::create(layout_, GatherFrom::kShards, params, axes_.shard.shared_group(), device, path_, all_gather);
  if (reshard_.ranks()) {
    post_forward_gather_ = Gather::create(layout_, GatherFrom::kPostForwardShards, params,
                                          post_forward_axis().shared_group(), device, path_, all_gather);
  }
}

comm::Axis ParamGroup::post_forward_axis() const { return axes_.shard.consecutive(*reshard_.ranks(), "post_forward"); }

void ParamGroup::make_comm() {
  comm_in_use_ = {custom_all_gather_, custom_reduce_scatter_};
  if (!memory_from_process_group_ || axes_.shard.size() == 1 || comm_->device->dry_run()) return;
  CommBufferSizes sizes;
  for (const auto& param : params_) {
    const auto elems = static_cast<std::size_t>(param->padded_shard_elems());
    sizes.gather_output += static_cast<std::size_t>(param->gather_output_bytes());
    sizes.reduce_output += elems * element_bytes(param->reduce_dtype().value_or(param->compute_dtype()));
  }
  sizes.reduce_input = sizes.reduce_output * static_cast<std::size_t>(axes_.shard.size());
  comm_in_use_ = comm_in_group_memory(axes_.shard.group(), sizes, path_);
}

// Once there is something to renew: before, lazy_init() makes it.
void ParamGroup::renew_comm() {
  if (comm_ == nullptr) return;
  drop_gather();
  make_comm();
  make_gathers();
}

void ParamGroup::set_custom_all_gather(std::shared_ptr<AllGather> comm) {
  custom_all_gather_ = std::move(comm);
  renew_comm();
}

void ParamGroup::set_custom_reduce_scatter(std::shared_ptr<ReduceScatter> comm) {
  custom_reduce_scatter_ = std::move(comm);
  if (comm_ != nullptr && !memory_from_process_group_) comm_in_use_.reduce_scatter = custom_reduce_scatter_;
}

void ParamGroup::set_memory_from_process_group(bool on) {
  if (on == memory_from_process_group_) return;
  memory_from_process_group_ = on;
  renew_comm();
}

void ParamGroup::set_all_reduce_hook(AllReduceHook hook, device::Stream* stream) {
  all_reduce_hook_ = std::move(hook);
  all_reduce_hook_stream_ = stream;
}

std::string ParamGroup::describe_comm() const {
  std::string text;
  if (custom_all_gather_ != nullptr) text += ", custom all-gather";
  if (custom_reduce_scatter_ != nullptr) text += ", custom reduce-scatter";
  if (memory_from_process_group_) text += ", buffers from the process group";
  if (all_reduce_hook_ != nullptr) text += ", all-reduce hook";
  return text;
}

void ParamGroup::check_dtypes() const {
  const Param* first = nullptr;
  for (const auto& param : params_) {
    if (!param->requires_grad()) continue;
    if (first == nullptr) first = param.get();
    if (param->original_dtype() != first->original_dtype() || param->reduce_dtype() != first->reduce_dtype()) {
      config_error(
          "group '{}' mixes trained parameters of {} ('{}') and {} ('{}'); wrap them apart or give them one dtype",
          shown_path(path_), name(first->original_dtype()), first->path(), name(param->original_dtype()),
          param->path());
    }
  }
}

// Whoever filled the model in may have put tensors of the device into its slots.
void ParamGroup::check_place(const Param& param) const {
  if (!param.cpu_offload()) return;
  for (const nn::ParamSlot* slot : param.home().slots) {
    if (slot->value.storage()->place() != Place::kDevice) continue;
    config_error(
        "parameter '{}' of group '{}' is on the device, but offload_to_cpu keeps its shard on the host; keep the "
        "tensor that "
        "fully_shard() put there and give it memory with materialize_shards()",
        param.path(), shown_path(path_));
  }
}

void ParamGroup::unshard() { issue_gather(/*prefetched=*/false); }

void ParamGroup::issue_gather(bool prefetched) {
  if (state_ == ShardedState::kGathering || state_ == ShardedState::kUnsharded) return;
  if (training_state_ == TrainingState::kPreBackward && !switches_.unshard_in_backward) return;
  pending_ = state_ == ShardedState::kShardedPostForward ? post_forward_gather_.get() : gather_.get();
  pending_->issue();
  state_ = ShardedState::kGathering;
  if (axes_.shard.size() > 1)
    mark(kGatherMark, pending_->input_bytes(), params_.front()->compute_dtype(), 0, prefetched);
}

void ParamGroup::wait_for_unshard() {
  if (state_ != ShardedState::kGathering) return;
  HeldGather held = pending_->finish();
  drop_post_forward_shards();
  for (const auto& param : params_) param->to_unsharded();
  state_ = ShardedState::kUnsharded;
  if (axes_.shard.size() > 1) mark(kGatheredMark);
  // The buffer before this one goes only now, when this group's parameters have their memory.
  comm_->release_held();
  if (!held.buffer.defined()) return;
  comm_->in_flight->held = std::move(held);
  if (training_state_ != TrainingState::kForward || autograd::in_backward()) comm_->release_held();
}

void ParamGroup::drop_post_forward_shards() {
  for (const auto& param : params_) param->drop_post_forward_shard();
}

void ParamGroup::reshard_to_post_forward() {
  if (state_ != ShardedState::kUnsharded) return;
  const int ranks = *reshard_.ranks();
  const int rank = post_forward_axis().rank();
  for (const auto& param : params_) {
    param->keep_post_forward_shard(rank, ranks);
    param->to_sharded();
  }
  gather_->release();
  state_ = ShardedState::kShardedPostForward;
  mark(kReshardPostForwardMark);
}

void ParamGroup::reshard() {
  if (state_ == ShardedState::kShardedPostForward) {
    drop_post_forward_shards();
    state_ = ShardedState::kSharded;
    mark(kReshardMark);
  }
  if (state_ != ShardedState::kUnsharded) return;
  for (const auto& param : params_) param->to_sharded();
  gather_->release();
  state_ = ShardedState::kSharded;
  mark(kReshardMark);
}

void ParamGroup::drop_gather() {
  if (state_ != ShardedState::kGathering) return;
  pending_->drop();
  drop_post_forward_shards();
  state_ = ShardedState::kSharded;
  mark(kDropMark);
}

void ParamGroup::pre_forward() {
  training_state_ = TrainingState::kForward;
  unshard();
  wait_for_unshard();
}

void ParamGroup::post_forward() {
  if (!autograd::in_backward()) {
    if (switches_.reshard_after_forward.ranks()) {
      reshard_to_post_forward();
    } else if (switches_.reshard_after_forward.frees()) {
      reshard();
    }
    if (autograd::backward_expected()) {
      post_forward_indices_.push_back(comm_->post_forward_order.size());
      comm_->post_forward_order.push_back(this);
    }
  }
  training_state_ = TrainingState::kIdle;
}

void ParamGroup::pre_backward(bool default_prefetch) {
  if (training_state_ == TrainingState::kPreBackward) return;
  training_state_ = TrainingState::kPreBackward;
  unshard();
  wait_for_unshard();
  if (default_prefetch) prefetch_previous();
}

void ParamGroup::prefetch_previous() {
  if (post_forward_indices_.empty()) return;
  const std::size_t index = post_forward_indices_.back();
  post_forward_indices_.pop_back();
  if (index > 0) comm_->post_forward_order[index - 1]->prefetch(TrainingState::kPreBackward);
}

void ParamGroup::prefetch(TrainingState on_behalf_of) {
  const TrainingState own = training_state_;
  training_state_ = on_behalf_of;
  issue_gather(/*prefetched=*/true);
  training_state_ = own;
}

void ParamGroup::post_backward() {
  training_state_ = TrainingState::kPostBackward;
  for (const auto& param : params_) param->fold_grad_into_accumulator();
  if (!switches_.reduce_grads) {
    if (switches_.reshard_after_backward) reshard();
    for (const auto& param : params_) param->move_grad_to_accumulator();
    return;
  }
  std::vector<Param*> params;
  std::vector<Tensor> grads;
  for (const auto& param : params_) {
    if (Tensor grad = param->take_unsharded_grad(); grad.defined()) {
      params.push_back(param.get());
      grads.push_back(std::move(grad));
    }
  }
  if (switches_.reshard_after_backward) reshard();
  if (!params.empty()) reduce(std::move(params), std::move(grads));
}

void ParamGroup::reduce(std::vector<Param*> params, std::vector<Tensor> grads) {
  comm_->wait_for_reduction();
  comm_->device->stream(StreamId::kCompute).wait(reduced_);
  const DType dtype = params.front()->reduce_dtype().value_or(grads.front().dtype());
  std::int64_t elems = 0;
  for (const Param* param : params) elems += param->padded_shard_elems();
  const bool replicated = axes_.replicate.size() > 1;
  mark(replicated && switches_.all_reduce_grads ? kReduceScatterAllReduceMark : kReduceScatterMark,
       axes_.shard.size() * elems * element_bytes(dtype), dtype, static_cast<std::int64_t>(params.size()));
  const ReduceContext context{.axes = axes_,
                              .device = comm_->device,
                              .path = reduction_tag(params),
                              .divide_factor = switches_.gradient_divide_factor,
                              .force_sum = switches_.force_sum_reduction,
                              .all_reduce = switches_.all_reduce_grads,
                              .partial = std::exchange(partial_, {}),
                              .comm = comm_in_use_.reduce_scatter,
                              .landing = comm_->landings++,
                              .hook = all_reduce_hook_,
                              .hook_stream = all_reduce_hook_stream_};
  const ReduceState& reduction =
      comm_->in_flight->reduction.emplace(reduce_gradients(context, params, std::move(grads)));
  if (replicated && !switches_.all_reduce_grads) partial_ = reduction.reduced;
  reduced_ = reduction.done;
}

std::string ParamGroup::reduction_tag(const std::vector<Param*>& params) const {
  std::string tag = path_;
  for (const auto& param : params_) {
    if (param->requires_grad() && std::find(params.begin(), params.end(), param.get()) == params.end()) {
      tag += (tag.size() == path_.size() ? " without " : ", ") + param->path();
    }
  }
  return tag;
}

void ParamGroup::finalize_backward() {
  comm_->device->stream(StreamId::kCompute).wait(reduced_);
  reduced_ = {};
  for (const auto& param : params_) {
    if (const auto& offload = param->cpu_offload(); offload && offload->wait_in_backward) param->wait_for_shard_grad();
  }
  drop_gather();  // prefetched and never used
  post_forward_indices_.clear();
}

void ParamGroup::mark(device::MarkKind kind, std::int64_t bytes, DType dtype, std::int64_t count, bool prefetched) {
  comm_->device->log().add_mark({kind, path_, bytes, dtype, count, prefetched});
}

}  // namespace loom::sharding
