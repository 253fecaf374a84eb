// Frame: one call whose graph is recorded without saved tensors, and which runs again when backward needs
// them. Private to recompute.
//
// First forward   saved tensors are recorded and not held; the call's arguments are saved through the hooks around it.
// Again           the first tensor that a backward needs runs the call again, once per graph task; each tensor is
//                 then returned once.
// Lives           as long as the graph uses it.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/tensor/autograd.h"
#include "recompute/checkpoint.h"
#include "recompute/kept_call.h"
#include "recompute/selective.h"

namespace loom::recompute {

class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(const CheckpointOptions& options, const nn::Module::Run& inner, const nn::Args& args);

  nn::Value run_first(nn::Args args);

  // The call's result when it runs again; runs it in the running backward unless that has done so already. Once per
  // backward. Precondition: not early_stop.
  nn::Value result_again();

 private:
  // Represents a saved tensor in the graph, and carries it between the second forward and its use.
  struct Holder {
    std::size_t index;
    Tensor tensor;
  };

  autograd::SavedTensorHooks first_forward();
  std::shared_ptr<Holder> note(const Tensor& tensor);
  Tensor bring_back(Holder& holder);
  void run_again_once();
  void run_again();
  nn::Value run_inner_again(nn::Args args);
  // The last tensor that a node still needs. Precondition: there is one.
  std::size_t last_needed() const;
  void take(std::size_t index, const Tensor& tensor) const;

  const CheckpointOptions options_;
  const nn::Module::Run inner_;
  std::vector<Tensor> tensors_;  // only during construction
  const KeptCall call_;
  std::vector<autograd::SavedTensor> inputs_;
  std::vector<std::pair<Shape, DType>> saved_;  // tensors saved by forward, in order
  std::vector<std::weak_ptr<Holder>> holders_;  // of each; expired once its node has run
  KeptResults kept_;
  std::optional<std::uint64_t> task_;  // the backward of the last recompute
  nn::Value result_;                   // of the second forward, until it is returned
  bool wants_result_ = false;
};

}  // namespace loom::recompute
