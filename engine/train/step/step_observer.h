// StepObserver: someone who watches the steps of a run - progress, metrics, a profiler, a report, the schedule's view,
// the planner.
//
// Order    begin_step, then begin_phase for every phase of the step ("pregather" with that key of fsdp2_config.yaml,
//          "forward" and "backward" for every micro-batch, "optimizer", clipping included, "end"), end_step. Several
//          observers: the one given first begins first and ends last. step_done follows once a step is evaluated;
//          run_done once, after the last evaluation, or run_stopped instead.
// Steps    are counted from 0; StepMetrics::step from 1.
// Cost     outside of these calls an observer does nothing to the rank. Bits do not change.
// Errors   what a call throws ends the run.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/train/step/step_metrics.h"

namespace loom::train {

class StepObserver {
 public:
  virtual ~StepObserver() = default;

  virtual void begin_step(std::int64_t /*step*/) {}
  virtual void begin_phase(std::string_view /*phase*/) {}
  virtual void end_step(std::int64_t /*step*/) {}
  // In the place of these calls: iteration `step` of --iterations-to-skip, from 1, was passed over.
  virtual void skipped(std::int64_t /*step*/) {}
  // What metrics.jsonl says of the step.
  virtual void step_done(const StepMetrics& /*metrics*/) {}
  // With --skip-train, in the place of steps: what the held-out data gave after `step` steps of runs before.
  virtual void evaluated(std::int64_t /*step*/, const Evaluation& /*held_out*/) {}
  // After the last evaluation; what the test data gave, where there is any.
  virtual void run_done(const std::optional<Evaluation>& /*test*/) {}
  // The run ended early, in order: a signal, --exit-interval, --exit-duration-in-mins.
  virtual void run_stopped() {}
};

}  // namespace loom::train
