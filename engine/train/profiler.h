// Profiler: what one rank did in the steps [--profile-step-start, --profile-step-end), as a trace and a summary.
//
// Files     <save path>/rank<R>_steps<first>-<last>.json, for Perfetto (perfetto.h), and the same name with .summary.json:
//           per kernel (and copy) count and total time; per collective, its group's size and bytes besides.
// Levels    level0  what runs on the streams, collectives with groups, ranks and bytes; the compute stream's kernels joined
//                   where they are issued in one go; arrows for events
//           level1  each kernel
//           level2  shapes, the waits of streams, memory by category
// Switches  with_cpu the host's lane; with_memory and record_shapes bring these at lower levels; with_stack the running
//           modules as each slice's call_site (in backward, those of its forward).
// Clocks    the host's, of what really ran: an item's begin and end on the thread that ran it; a collective's time holds its
//           waiting for peers. With a device profile, virtual time as a second process of the trace: this rank alone, its
//           peers taken to be alike.
// Between   steps nothing is collected (evaluation).
// Cost      nothing outside of the steps. The rank's streams are waited for before the first and after the last one; bits
//           do not change.
// Errors    ConfigError when the files cannot be written.
// Threads   the rank's host thread.
// Source    MindSpeed's --profile flags.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/device/profile.h"
#include "engine/train/arguments.h"
#include "engine/train/perfetto.h"

namespace loom::train {

class Profiler {
 public:
  // Of the rank that is current. `device`: for virtual time. The references outlive the profiler.
  Profiler(const TrainArguments& arguments, const std::optional<device::HardwareProfile>& device);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Around the steps of the run, counted from 0.
  void begin_step(std::int64_t step);
  void end_step();
  // After the last step of the window or of the run, whichever comes first: writes what was collected; later calls do
  // nothing. Where it was written; none if nothing was collected.
  std::optional<std::string> finish();
  // The window has ended.
  bool is_over(std::int64_t next_step) const { return next_step >= arguments_.step_end; }

 private:
  struct Collected;

  const ProfileArguments& arguments_;
  const std::optional<device::HardwareProfile>& device_;
  const OnHost on_host_;
  const bool collects_;
  std::unique_ptr<Collected> collected_;  // null before the first step and after the last
};

// What to say when no step of the run is in the window.
std::optional<std::string> profile_warning(const ProfileArguments& arguments, std::int64_t train_iters);

}  // namespace loom::train
