#include "engine/observe/snapshot_of_run.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/device/device.h"
#include "engine/formats/torch/memory_snapshot.h"
#include "engine/io/atomic_file.h"
#include "engine/observe/memory_snapshot.h"
#include "engine/virtual_time/resolve.h"

namespace loom::observe {

SnapshotOfRun::SnapshotOfRun(Options options, const virtual_time::HardwareProfile& profile)
    : options_(std::move(options)), profile_(profile) {
  origins_.emplace(device::Device::current(), device::RecorderOptions{.entries = false, .allocator = true});
}

void SnapshotOfRun::begin_step(std::int64_t step) {
  if (!recorded_) recorded_ = std::min(step + 1, options_.train_iters - 1);
  if (step != recorded_) return;
  origins_->clear();
  step_.emplace(device::Device::current(),
                device::RecorderOptions{.allocator = true, .call_site = [this] { return sites_.running(); }});
}

void SnapshotOfRun::end_step(std::int64_t step) {
  if (step != recorded_) return;
  const device::Recording recording = step_->recording();
  step_.reset();
  origins_.reset();
  const virtual_time::RankRecording rank{0, &recording};
  const virtual_time::VirtualTimes times = virtual_time::resolve({&rank, 1}, virtual_time::TimeModel(profile_));
  io::write_text(options_.file,
                 io::write_memory_snapshot(memory_snapshot(recording, times.ranks.front(), options_.alloc_conf)));
  log_info("memory snapshot of step {} written to {}", step + 1, escaped(options_.file.string()));
}

void SnapshotOfRun::run_done(const std::optional<train::Evaluation>& /*test*/) { run_stopped(); }

void SnapshotOfRun::run_stopped() {
  if (!origins_) return;
  log_warning("--memory-snapshot {} is not written: the run ended before {}", escaped(options_.file.string()),
              recorded_ ? fmt::format("step {}", *recorded_ + 1) : "a step");
}

}  // namespace loom::observe
