// StepObserver: an observer of the steps of a run: progress, metrics, a profiler, a report, the schedule's view,
// the planner.
//
// Order    begin_step, then begin_phase for every phase of the step ("pregather" with that key of fsdp2_config.yaml,
//          "forward" and "backward" for every micro-batch, "optimizer", clipping included, "end"), end_step. Several
//          observers: the one given first begins first and ends last. step_done follows once a step is evaluated;
//          run_done once, after the last evaluation, or run_stopped instead.
// Steps    are counted from 0; StepMetrics::step from 1.
// Cost     outside of these calls an observer does nothing to the rank. Bits do not change.
// Errors   an exception from a call ends the run.
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
  // Replaces these calls for iteration `step` of --iterations-to-skip, from 1.
  virtual void skipped(std::int64_t /*step*/) {}
  // The step's row of metrics.jsonl.
  virtual void step_done(const StepMetrics& /*metrics*/) {}
  // With --skip-train, instead of steps: the held-out evaluation after `step` steps of earlier runs.
  virtual void evaluated(std::int64_t /*step*/, const Evaluation& /*held_out*/) {}
  // After the last evaluation; `test`: the evaluation of the test data, if there is any.
  virtual void run_done(const std::optional<Evaluation>& /*test*/) {}
  // The run ended early but in order: a signal, --exit-interval, --exit-duration-in-mins.
  virtual void run_stopped() {}
};

}  // namespace loom::train
