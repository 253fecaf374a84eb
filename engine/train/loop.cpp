#include "engine/train/loop.h"

#include <algorithm>
#include <utility>

namespace loom::train {

namespace {

void evaluate_only(Trainer& trainer, const data::DataLoaders& data, const std::vector<StepObserver*>& observers) {
  const std::optional<Evaluation> held_out = trainer.evaluate(data.valid);
  const std::optional<Evaluation> test = trainer.evaluate(data.test);
  for (StepObserver* observer : observers) {
    if (held_out) observer->evaluated(trainer.state().step, *held_out);
    observer->run_done(test);
  }
}

// --train-iters, minus the iterations of --iterations-to-skip at the end.
std::int64_t last_trained_iteration(const ScheduleOptions& options) {
  std::int64_t last = options.train_iters;
  while (std::ranges::binary_search(options.iterations_to_skip, last)) --last;
  return last;
}

void add_evaluation(StepMetrics& metrics, std::optional<Evaluation> held_out) {
  if (!held_out) return;
  metrics.held_out_loss = held_out->loss;
  metrics.held_out_reports = std::move(held_out->reports);
}

double elapsed_minutes(const LoopHooks& hooks) { return hooks.elapsed_minutes ? hooks.elapsed_minutes() : 0.0; }

StopRequest own_request(const ScheduleOptions& options, const LoopHooks& hooks) {
  return {.signal = hooks.signal ? hooks.signal() : 0, .time_is_up = time_is_up(options, elapsed_minutes(hooks))};
}

ExitDecision decide(const Trainer& trainer, const ScheduleOptions& options, const LoopHooks& hooks) {
  const StopRequest agreed = trainer.agreed_stop();
  return decide_exit(options, {.iteration = trainer.state().step,
                               .train_iters = options.train_iters,
                               .signal = agreed.signal,
                               .time_is_up = agreed.time_is_up,
                               .elapsed_minutes = elapsed_minutes(hooks)});
}

}  // namespace

ExitDecision run_steps(Trainer& trainer, const ScheduleOptions& options, const data::DataLoaders& data,
                       std::vector<StepObserver*> observers, const LoopHooks& hooks) {
  ExitDecision decision{.reason = EndReason::kLastStep, .signal = 0, .text = {}};
  if (options.skip_train) {
    evaluate_only(trainer, data, observers);
    return decision;
  }
  trainer.set_observers(observers);
  const std::int64_t last = last_trained_iteration(options);
  trainer.set_stop_request([&] { return own_request(options, hooks); });
  for (bool ends = trainer.state().step >= options.train_iters; !ends; ends = decision.exit()) {
    trainer.skip_iterations();
    if (trainer.state().step == options.train_iters) {
      if (hooks.save) hooks.save(trainer.state().step);
      break;
    }
    StepMetrics metrics = trainer.step();
    const std::int64_t done = trainer.state().step;
    if (done == last) trainer.skip_iterations();
    decision = decide(trainer, options, hooks);
    const bool evaluates = done == last || done % options.eval_interval == 0;
    if (evaluates && decision.reason != EndReason::kSignal) add_evaluation(metrics, trainer.evaluate(data.valid));
    for (StepObserver* observer : observers) observer->step_done(metrics);
    if (decision.save && hooks.save) hooks.save(trainer.state().step);
  }
  trainer.set_stop_request({});
  if (decision.reason == EndReason::kLastStep) {
    const std::optional<Evaluation> test = trainer.evaluate(data.test);
    for (StepObserver* observer : observers) observer->run_done(test);
  } else {
    for (StepObserver* observer : observers) observer->run_stopped();
  }
  trainer.set_observers({});
  return decision;
}

}  // namespace loom::train
