#include "engine/observe/schedule_printer.h"

#include <algorithm>
#include <utility>

#include "engine/device/device.h"
#include "engine/observe/schedule_view.h"

namespace loom::observe {

SchedulePrinter::SchedulePrinter(std::int64_t train_iters, Print print)
    : shown_(std::min<std::int64_t>(1, train_iters - 1)), print_(std::move(print)) {}

void SchedulePrinter::begin_step(std::int64_t step) {
  if (step == shown_) device::Device::current().trace().enable(true);
}

void SchedulePrinter::end_step(std::int64_t step) {
  if (step != shown_) return;
  device::Device& device = device::Device::current();
  print_(to_text(view_schedule(device.trace(), device.memory().stats())));
  device.trace().enable(false);
  device.trace().clear();
}

}  // namespace loom::observe
