// The memory snapshot of a training run (--memory-snapshot): one step of rank 0 (memory_snapshot.h).
//
// Step     the second of this run (the first also fills the caches of later steps), or the only one; timed on the
//          device profile of --report-device, assuming identical peers.
// Begins   before the trainer is made: blocks are named since then.
// Errors   end_step: DeviceError if the profile has no rate for a dtype of the step; ConfigError if the file cannot be
//          written.
// Threads  the host thread of rank 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/device/recorder.h"
#include "engine/nn/call_stack.h"
#include "engine/train/step/step_observer.h"
#include "engine/virtual_time/profile.h"

namespace loom::observe {

class SnapshotOfRun final : public train::StepObserver {
 public:
  struct Options {
    std::filesystem::path file;
    std::string alloc_conf;  // as PYTORCH_ALLOC_CONF
    std::int64_t train_iters = 1;
  };
  // Of the current rank. The profile outlives it.
  SnapshotOfRun(Options options, const virtual_time::HardwareProfile& profile);

  void begin_step(std::int64_t step) override;
  // After the recorded step: writes the file and logs its place.
  void end_step(std::int64_t step) override;
  // Warn of a run that did not come to that step.
  void run_done(const std::optional<train::Evaluation>& test) override;
  void run_stopped() override;

 private:
  const Options options_;
  const virtual_time::HardwareProfile& profile_;
  std::optional<std::int64_t> recorded_;  // the step; known when the first one begins
  nn::CallSites sites_;
  std::optional<device::Recorder> origins_;  // none once the file is written
  std::optional<device::Recorder> step_;
};

}  // namespace loom::observe
