// FLOPs of a step, from the costs of the work issued to the device.
//
// Model    three times the matrix products and attention of the forward, causal attention by half; recomputation
//          does not count (Megatron-LM's num_floating_point_operations, for any model).
// Threads  the rank's host thread.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/device/recorder.h"
#include "engine/train/step/step_observer.h"

namespace loom::train {

// Matrix products and attention of a phase, or of all.
double arithmetic_flops(const device::Recording& recording, std::optional<std::string_view> phase = {});

double model_flops(const device::Recording& recording);

// Records the first step that it observes, on the rank of this thread.
class StepFlops final : public StepObserver {
 public:
  // `also` gets that recording too, at the end of the step.
  explicit StepFlops(std::function<void(const device::Recording&)> also = nullptr) : also_(std::move(also)) {}

  void begin_step(std::int64_t step) override;
  // Throws Error if the forward ran no matrix product and no attention: --log-throughput has nothing to count.
  void end_step(std::int64_t step) override;

  // FLOPs of one step on this rank, after the first.
  double per_step() const { return per_step_; }

 private:
  const std::function<void(const device::Recording&)> also_;
  std::optional<device::Recorder> recorder_;
  double per_step_ = 0;
};

}  // namespace loom::train
