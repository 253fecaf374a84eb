#include "recompute/recorded.h"

#include <optional>
#include <utility>

#include "engine/core/rng_state.h"
#include "engine/tensor/autograd.h"
#include "recompute/kept_call.h"
#include "recompute/selective.h"

namespace loom::recompute {
namespace {

// Stands in the graph for a tensor that was saved, and carries it between the second forward and its use.
struct Holder {
  std::size_t index;
  Tensor tensor;
};

// Leaves the second forward early.
struct Stop {};

// One call of a checkpointed module; lives as long as the graph has use for it.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(const CheckpointOptions& options, const nn::Module::Run& inner, const nn::Args& args)
      : options_(options), inner_(inner), call_(args, tensors_), kept_(options.path) {
    for (const Tensor& tensor : std::exchange(tensors_, {})) inputs_.emplace_back(tensor);
  }

  nn::Value run_first(nn::Args args) {
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

 private:
  autograd::SavedTensorHooks first_forward() {
    return {[self = shared_from_this()](const Tensor& tensor) -> std::any { return self->note(tensor); },
            [self = shared_from_this()](const std::any& held) {
              return self->bring_back(*std::any_cast<const std::shared_ptr<Holder>&>(held));
            }};
  }

  std::shared_ptr<Holder> note(const Tensor& tensor) {
    auto holder = std::make_shared<Holder>(Holder{saved_.size(), {}});
    saved_.push_back({tensor.shape(), tensor.dtype()});
    holders_.push_back(holder);
    return holder;
  }

  Tensor bring_back(Holder& holder) {
    const std::uint64_t task = autograd::graph_task_id();
    require(task != 0, "recompute of '{}' was asked for outside backward", options_.path);
    if (task_ != task) {
      run_again();
      task_ = task;
    }
    require(holder.tensor.defined(), "recompute of '{}': saved tensor {} was asked for twice in one backward",
            options_.path, holder.index);
    return std::exchange(holder.tensor, {});
  }

  void run_again() {
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
      run_inner_again(call_.filled(call_.leaves(tensors)));
    } catch (const Stop&) {
      return;
    }
    if (saved == count) return;
    raise<RecomputeError>(
        "recompute of '{}': forward saved {} tensors for backward, and {} when it ran again; it must do the same "
        "both times",
        options_.path, count, saved);
  }

  void run_inner_again(nn::Args args) {
    if (options_.keep == Keep::kNothing) {
      inner_(std::move(args));
      return;
    }
    const auto keeper = kept_.recalling();
    const autograd::ResultKeeperScope kept(*keeper);
    inner_(std::move(args));
  }

  // The last tensor a node still waits for. Precondition: there is one.
  std::size_t last_needed() const {
    std::size_t index = holders_.size();
    while (index > 0 && holders_[index - 1].expired()) --index;
    require(index > 0, "recompute of '{}' that nobody needs", options_.path);
    return index - 1;
  }

  void take(std::size_t index, const Tensor& tensor) const {
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

  const CheckpointOptions options_;
  const nn::Module::Run inner_;
  std::vector<Tensor> tensors_;  // only while the frame is made
  const KeptCall call_;
  std::vector<autograd::SavedTensor> inputs_;
  std::vector<std::pair<Shape, DType>> saved_;  // what forward saved, in order
  std::vector<std::weak_ptr<Holder>> holders_;  // of each; expired once its node has run
  KeptResults kept_;
  std::optional<std::uint64_t> task_;  // the backward that was computed for
};

}  // namespace

nn::Value run_recorded(const CheckpointOptions& options, const nn::Module::Run& inner, nn::Args args) {
  return std::make_shared<Frame>(options, inner, args)->run_first(std::move(args));
}

}  // namespace loom::recompute
