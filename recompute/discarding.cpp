#include "recompute/discarding.h"

#include <utility>

#include "engine/core/error.h"
#include "engine/tensor/outer_hooks.h"
#include "recompute/frame.h"

namespace loom::recompute {
namespace {

// The output of one call: forward releases its bytes and backward restores them. Held by the consumer's saved tensors.
class Output : public std::enable_shared_from_this<Output> {
 public:
  Output(std::string path, std::shared_ptr<Frame> call, const Tensor& output)
      : path_(std::move(path)), call_(std::move(call)), offset_(output.offset_elems()), storage_(output.storage()) {}

  // In force while the consumer runs: its saved tensors of the output are noted, all others go to the outer hooks.
  autograd::SavedTensorHooks hooks() {
    return {[self = shared_from_this()](const Tensor& tensor) -> std::any {
              if (tensor.storage() == self->storage_.lock()) return self->note(tensor);
              const autograd::OuterHooksScope outer;
              return autograd::SavedTensor(tensor);
            },
            [](const std::any& held) {
              if (const auto* saved = std::any_cast<autograd::SavedTensor>(&held)) return saved->unpack();
              const View& view = std::any_cast<const View&>(held);
              return view.output->bring_back(view);
            }};
  }

 private:
  struct View {
    std::shared_ptr<Output> output;
    std::int64_t offset;  // elements behind the output's first
    Shape shape;
    DType dtype;
  };

  View note(const Tensor& tensor) {
    return {shared_from_this(), tensor.offset_elems() - offset_, tensor.shape(), tensor.dtype()};
  }

  Tensor bring_back(const View& view) {
    const std::uint64_t task = autograd::graph_task_id();
    if (task_ != task) {
      again_ = call_->result_again().tensor();
      task_ = task;
    }
    if (again_.dtype() != view.dtype || again_.numel() < view.offset + view.shape.numel()) {
      raise<RecomputeError>(
          "recompute of '{}': its output had at least {} elements in {} in forward, and has {} in {} when it runs "
          "again; "
          "it must do the same both times",
          path_, view.offset + view.shape.numel(), name(view.dtype), again_.numel(), name(again_.dtype()));
    }
    return {again_.storage(), again_.offset_elems() + view.offset, view.shape, view.dtype};
  }

  const std::string path_;
  const std::shared_ptr<Frame> call_;
  const std::int64_t offset_;
  const std::weak_ptr<Storage> storage_;
  Tensor again_;
  std::uint64_t task_ = 0;
};

}  // namespace

nn::Value run_discarding(const std::string& path, const nn::Module::Run& function, nn::Args args,
                         const std::function<nn::Value(const Tensor& output)>& consumer) {
  if (!autograd::grad_enabled()) {
    const Tensor output = function(std::move(args));
    return consumer(output);
  }
  const auto call = std::make_shared<Frame>(
      CheckpointOptions{.path = path, .use_reentrant = false, .early_stop = false}, function, args);
  const Tensor output = call->run_first(std::move(args));
  const auto dropped = std::make_shared<Output>(path, call, output);
  const autograd::SavedTensorHooksScope scope(dropped->hooks());
  return consumer(output);
}

}  // namespace loom::recompute
