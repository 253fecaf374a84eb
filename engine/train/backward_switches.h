// What the backward of a micro-batch leaves to a later one of its step: the reduction of gradients (sync_each_batch)
// and the release of gathered parameters (reshard_after_backward).
//
// Threads  the rank's host thread.
#pragma once

namespace loom::nn {
class Module;
}

namespace loom::train {

struct TrainingInputs;

class BackwardSwitches {
 public:
  // Both outlive this.
  BackwardSwitches(nn::Module& sharded, const TrainingInputs& inputs) : sharded_(sharded), inputs_(inputs) {}

  // Without FSDP2 nothing.
  void set(bool reduces, bool is_last);

 private:
  nn::Module& sharded_;
  const TrainingInputs& inputs_;
  bool reduces_ = true, reshards_ = true;  // in the backward before
};

}  // namespace loom::train
