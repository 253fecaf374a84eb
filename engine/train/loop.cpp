#include "engine/train/loop.h"

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

}  // namespace

int run_steps(Trainer& trainer, const TrainerOptions& options, const data::DataLoaders& data,
              std::vector<StepObserver*> observers) {
  if (options.skip_train) {
    evaluate_only(trainer, data, observers);
    return 0;
  }
  trainer.set_observers(observers);
  int stop = 0;
  while (stop == 0 && trainer.state().step < options.train_iters) {
    StepMetrics metrics = trainer.step();
    const std::int64_t done = trainer.state().step;
    if (done < options.train_iters) stop = trainer.agreed_stop();
    if (stop == 0 && (done == options.train_iters || done % options.eval_interval == 0))
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
