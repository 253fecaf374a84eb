// SchedulePrinter: --print-schedule, the order of events of one step in words.
//
// Step     the second, as the first also fills the caches of later steps; or the only one.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "engine/device/recorder.h"
#include "engine/train/step/step_observer.h"

namespace loom::observe {

class SchedulePrinter final : public train::StepObserver {
 public:
  using Print = std::function<void(std::string_view text)>;
  SchedulePrinter(std::int64_t train_iters, Print print);

  void begin_step(std::int64_t step) override;
  void end_step(std::int64_t step) override;

 private:
  const std::int64_t shown_;
  const Print print_;
  std::optional<device::Recorder> recorder_;
};

}  // namespace loom::observe
