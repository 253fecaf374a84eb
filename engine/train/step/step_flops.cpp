#include "engine/train/step/step_flops.h"

#include "engine/core/error.h"

namespace loom::train {

double arithmetic_flops(const device::Recording& recording, std::optional<std::string_view> phase) {
  double flops = 0;
  bool counts = !phase;
  for (const device::Entry& entry : recording.entries) {
    if (entry.kind == device::EntryKind::kPhase && phase) counts = recording.text(entry.name) == *phase;
    const bool arithmetic = entry.cost.unit == device::Unit::kMatrix || entry.cost.unit == device::Unit::kAttention;
    if (counts && arithmetic && device::is_stream_work(entry.kind)) flops += entry.cost.flops;
  }
  return flops;
}

double model_flops(const device::Recording& recording) { return 3 * arithmetic_flops(recording, "forward"); }

void StepFlops::begin_step(std::int64_t) {
  if (per_step_ == 0) recorder_.emplace(device::Device::current());
}

void StepFlops::end_step(std::int64_t step) {
  if (!recorder_) return;
  const device::Recording recording = recorder_->recording();
  recorder_.reset();
  per_step_ = model_flops(recording);
  if (also_) also_(recording);
  if (per_step_ > 0) return;
  raise<Error>(
      "--log-throughput counts the FLOPs of matrix products and attention, and the forward of iteration {} has none; "
      "remove --log-throughput",
      step + 1);
}

}  // namespace loom::train
