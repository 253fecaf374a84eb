#include "engine/train/loop.h"

#include <algorithm>
#include <utility>

namespace loom::train {

namespace {

void evaluate_only(Trainer& trainer, const data::DataLoaders& data, const std::vector<StepObserver*>& observers) {
  const std::optional<double> held_out_loss = trainer.evaluate(data.valid);
  const std::optional<double> test_loss = trainer.evaluate(data.test);
  for (StepObserver* observer : observers) {
    if (held_out_loss) observer->evaluated(trainer.state().step, *held_out_loss);
    observer->run_done(test_loss);
  }
}

// --train-iters, less those of --iterations-to-skip that stand at the end.
std::int64_t last_trained_iteration(const TrainerOptions& options) {
  std::int64_t last = options.train_iters;
  while (std::ranges::binary_search(options.iterations_to_skip, last)) --last;
  return last;
}

}  // namespace

int run_steps(Trainer& trainer, const TrainerOptions& options, const data::DataLoaders& data,
              std::vector<StepObserver*> observers) {
  if (options.skip_train) {
    evaluate_only(trainer, data, observers);
    return 0;
  }
  trainer.set_observers(observers);
  const std::int64_t last = last_trained_iteration(options);
  int stop = 0;
  while (stop == 0 && trainer.state().step < options.train_iters) {
    trainer.skip_iterations();
    if (trainer.state().step == options.train_iters) break;
    StepMetrics metrics = trainer.step();
    const std::int64_t done = trainer.state().step;
    if (done < last) stop = trainer.agreed_stop();
    if (stop == 0 && (done == last || done % options.eval_interval == 0))
      metrics.held_out_loss = trainer.evaluate(data.valid);
    for (StepObserver* observer : observers) observer->step_done(metrics);
  }
  if (stop == 0) {
    const std::optional<double> test_loss = trainer.evaluate(data.test);
    for (StepObserver* observer : observers) observer->run_done(test_loss);
  } else {
    for (StepObserver* observer : observers) observer->run_stopped();
  }
  trainer.set_observers({});
  return stop;
}

}  // namespace loom::train
