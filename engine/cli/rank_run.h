// RankRun: a rank's training run: the trainer, its checkpoints, and the observers of its steps. Private to engine/cli.
//
// Order    the trainer is made; --load; the observers; the steps; the final outputs; after_training.
// Threads  the rank's host thread; collective.
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <syncstream>
#include <vector>

#include "engine/cli/host_plan.h"
#include "engine/cli/rank_logs.h"
#include "engine/cli/run_end.h"
#include "engine/cli/words/arguments.h"
#include "engine/core/rank_context.h"
#include "engine/launch/start.h"
#include "engine/log/metrics.h"
#include "engine/log/progress.h"
#include "engine/observe/profiler.h"
#include "engine/observe/report_run.h"
#include "engine/observe/schedule_printer.h"
#include "engine/observe/snapshot_of_run.h"
#include "engine/train/finite.h"
#include "engine/train/loop.h"
#include "engine/train/run_checkpoints.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/find_profile.h"

namespace loom::cli {

// Inputs read before the ranks start, beside the training's own; the rank threads of a process share them.
struct ObserverInputs {
  std::optional<observe::ReportInputs> report;
  std::optional<virtual_time::HardwareProfile> profile_device;
  std::optional<virtual_time::HardwareProfile> snapshot_device;
};

// State shared by the ranks of a process; outlives them.
struct RunSetup {
  const launch::Start& start;
  const job::Job& job;
  const train::PretrainCallbacks& callbacks;
  const train::TrainingInputs& inputs;
  const ObserverInputs& observed;
  const HostPlan& host;
};

class RankRun {
 public:
  // Sets up the rank, and reads the checkpoint of --load.
  RankRun(const RunSetup& setup, RankContext& context, comm::World& world, RunEnd& end, std::ostream& program_out);

  void run();

 private:
  void tell_begin();
  void say(const std::string& line);
  void note(std::string_view text);
  log::ProgressOptions progress_options() const;
  void watch();
  void write_outputs(const train::ExitDecision& ended);
  bool save_model();
  void tell_end(const train::ExitDecision& ended, bool saved);

  const RunSetup& setup_;
  const job::Job& job_;
  RunEnd& end_;
  std::osyncstream out_;  // the first rank prints, and the last
  const bool first_;
  const bool short_log_;
  const std::shared_ptr<comm::ProcessGroup> log_order_;  // for Megatron's log, which two ranks print
  std::unique_ptr<observe::SnapshotOfRun> snapshot_;     // null: not asked for, or not the first rank
  train::Trainer trainer_;
  std::optional<log::Progress> progress_;  // once the run has begun
  train::RunCheckpoints checkpoints_;
  const std::int64_t begins_at_;  // the iteration of the checkpoint, or 0
  observe::Profiler profiler_;
  std::optional<observe::SchedulePrinter> printer_;
  std::optional<observe::RunReport> report_;
  std::optional<log::MetricsWriter> metrics_;
  train::FiniteWatch finite_;
  RankLogs logs_;
  std::vector<train::StepObserver*> observers_;
};

}  // namespace loom::cli
