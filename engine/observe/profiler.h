// Profiler: the work of one rank in the steps [--profile-step-start, --profile-step-end), as a trace and a summary.
//
// Files     <save path>/rank<R>_steps<first>-<last>.json, for Perfetto (perfetto.h), and the same name with
//           .summary.json: per kernel (and copy) count and total time; per collective, its group's size and bytes
//           besides.
// Levels    level0  what runs on the streams, collectives with groups, ranks and bytes; the compute stream's kernels
//                   joined if issued in one go; arrows for events
//           level1  each kernel
//           level2  shapes, the waits of streams, memory by category
// Switches  with_cpu the host's lane; with_memory and record_shapes bring these at lower levels; with_stack the running
//           modules as each slice's call_site (in backward, the modules of its forward).
// Clocks    the host's, for real execution: an item's start and end on the thread that ran it; a collective's time
//           includes its wait for peers. With a device profile, virtual time as a second process of the trace: this
//           rank alone, assuming identical peers.
// Between   steps nothing is collected (evaluation).
// Cost      nothing outside of the steps. The rank's streams are drained before the first and after the last one;
//           bits do not change.
// Errors    ConfigError if the files cannot be written.
// Threads   the rank's host thread.
// Source    MindSpeed's --profile flags.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/stream.h"
#include "engine/observe/options.h"
#include "engine/observe/perfetto.h"
#include "engine/train/step/step_observer.h"
#include "engine/virtual_time/profile.h"

namespace loom::observe {

// The facts about a run that the profiler needs.
struct ProfiledRun {
  device::ExecutorKind executor = device::ExecutorKind::kThreaded;
  std::int64_t train_iters = 1;
};

class Profiler final : public train::StepObserver {
 public:
  // Profiles the current rank. `device`: for virtual time. The references outlive the profiler.
  Profiler(const ProfileOptions& options, const std::optional<virtual_time::HardwareProfile>& device, ProfiledRun run);
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Around the steps of the run, counted from 0.
  void begin_step(std::int64_t step) override;
  // After the last step of the window, or of the run: writes the collected data and logs the place.
  void end_step(std::int64_t step) override;
  // Writes the data collected so far.
  void run_stopped() override;

 private:
  struct Collected;

  void write_collected();

  std::vector<TracedRank> traced(const device::Recording& recording, std::int64_t origin_ns) const;
  nlohmann::ordered_json about(std::int64_t origin_ns) const;
  std::string write(const device::Recording& recording) const;

  const ProfileOptions& options_;
  const std::optional<virtual_time::HardwareProfile>& device_;
  const OnHost on_host_;
  const bool collects_;
  const std::int64_t last_step_;          // the last one to collect
  std::unique_ptr<Collected> collected_;  // null before the first step and after the last
};

// The warning if no step of the run is in the window.
std::optional<std::string> profile_warning(const ProfileOptions& profile, std::int64_t train_iters);

}  // namespace loom::observe
