#include "recompute/frame.h"

#include "engine/core/rng_state.h"

namespace loom::recompute {
namespace {

// Leaves the second forward early.
struct Stop {};

}  // namespace

Frame::Frame(const CheckpointOptions& options, const nn::Module::Run& inner, const nn::Args& args)
    : options_(options), inner_(inner), call_(args, tensors_), kept_(options.path, options.keep) {
  for (const Tensor& tensor : std::exchange(tensors_, {})) inputs_.emplace_back(tensor);
}

nn::Value Frame::run_first(nn::Args args) {
  // The inputs went through the hooks of an enclosing checkpoint, what forward saves goes through the frame's own.
  const autograd::SavedTensorHooksScope scope(first_forward());
  if (options_.keep == Keep::kNothing) return inner_(std::move(args));
  const auto keeper = kept_.keeping(saved_);
  nn::Value result;
  {
    const autograd::ResultKeeperScope kept(*keeper);
    result = inner_(std::move(args));
  }
  if (options_.keep == Keep::kSelectedOpsNeeded) kept_.drop_behind(saved_.size());
  return result;
}

nn::Value Frame::result_again() {
  wants_result_ = true;
  run_again_once();
  return std::exchange(result_, {});
}

autograd::SavedTensorHooks Frame::first_forward() {
  return {[self = shared_from_this()](const Tensor& tensor) -> std::any { return self->note(tensor); },
          [self = shared_from_this()](const std::any& held) {
            return self->bring_back(*std::any_cast<const std::shared_ptr<Holder>&>(held));
          }};
}

std::shared_ptr<Frame::Holder> Frame::note(const Tensor& tensor) {
  auto holder = std::make_shared<Holder>(Holder{saved_.size(), {}});
  saved_.push_back({tensor.shape(), tensor.dtype()});
  holders_.push_back(holder);
  return holder;
}

Tensor Frame::bring_back(Holder& holder) {
  run_again_once();
  require(holder.tensor.defined(), "recompute of '{}': saved tensor {} was requested twice in one backward",
          options_.path, holder.index);
  return std::exchange(holder.tensor, {});
}

void Frame::run_again_once() {
  const std::uint64_t task = autograd::graph_task_id();
  require(task != 0, "recompute of '{}' was requested outside backward", options_.path);
  if (task_ == task) return;
  run_again();
  task_ = task;
}

void Frame::run_again() {
  const std::size_t count = saved_.size();
  const std::size_t end = options_.early_stop ? last_needed() + 1 : count;
  std::size_t saved = 0;
  const autograd::SavedTensorHooks second_forward{
      [this, end, &saved](const Tensor& tensor) -> std::any {
        take(saved++, tensor);
        if (options_.early_stop && saved == end) throw Stop{};
        return tensor;
      },
      [](const std::any& held) { return std::any_cast<const Tensor&>(held); }};
  std::vector<Tensor> tensors;
  for (const autograd::SavedTensor& input : inputs_) tensors.push_back(input.unpack());
  try {
    const autograd::GradMode recorded(true);
    const RngReplay replay(call_.rng());
    const autograd::SavedTensorHooksScope scope(second_forward);
    const nn::Value result = run_inner_again(call_.filled(call_.leaves(tensors)));
    if (wants_result_) result_ = result.map_tensors([](const Tensor& tensor) { return tensor.detach(); });
  } catch (const Stop&) {
    return;
  }
  if (saved == count) return;
  raise<RecomputeError>(
      "recompute of '{}': forward saved {} tensors for backward, and {} when it ran again; it must do the same "
      "both times",
      options_.path, count, saved);
}

nn::Value Frame::run_inner_again(nn::Args args) {
  if (options_.keep == Keep::kNothing) return inner_(std::move(args));
  const auto keeper = kept_.recalling();
  const autograd::ResultKeeperScope kept(*keeper);
  return inner_(std::move(args));
}

std::size_t Frame::last_needed() const {
  std::size_t index = holders_.size();
  while (index > 0 && holders_[index - 1].expired()) --index;
  require(index > 0, "recompute of '{}' without a pending node", options_.path);
  return index - 1;
}

void Frame::take(std::size_t index, const Tensor& tensor) const {
  if (index >= saved_.size()) return;  // counted at the end
  const auto& [shape, dtype] = saved_[index];
  if (tensor.shape() != shape || tensor.dtype() != dtype) {
    raise<RecomputeError>(
        "recompute of '{}': saved tensor {} of {} was {} {} in forward and is {} {} when it runs again; forward "
        "must do the same both times",
        options_.path, index, saved_.size(), name(dtype), to_string(shape), name(tensor.dtype()),
        to_string(tensor.shape()));
  }
  if (const auto holder = holders_[index].lock()) holder->tensor = tensor;
}

}  // namespace loom::recompute
