#include "engine/observe/schedule_printer.h"

#include <algorithm>
#include <utility>

#include "engine/device/device.h"
#include "engine/observe/schedule_view.h"

namespace loom::observe {

SchedulePrinter::SchedulePrinter(std::int64_t train_iters, Print print)
    : shown_(std::min<std::int64_t>(1, train_iters - 1)), print_(std::move(print)) {}

void SchedulePrinter::begin_step(std::int64_t step) {
  if (step == shown_) recorder_.emplace(device::Device::current(), device::RecorderOptions{.memory = true});
}

void SchedulePrinter::end_step(std::int64_t step) {
  if (step != shown_) return;
  print_(to_text(view_schedule(recorder_->recording())));
  recorder_.reset();
}

}  // namespace loom::observe
