#include "engine/train/loop.h"

#include <utility>

namespace loom::train {

void run_steps(Trainer& trainer, const TrainerOptions& options, const data::DataLoaders& data,
               std::vector<StepObserver*> observers) {
  trainer.set_observers(observers);
  for (std::int64_t step = 0; step < options.train_iters; ++step) {
    StepMetrics metrics = trainer.step(step);
    const bool last = step + 1 == options.train_iters;
    if (last || (step + 1) % options.eval_interval == 0) metrics.held_out_loss = trainer.evaluate(data.valid);
    for (StepObserver* observer : observers) observer->step_done(metrics);
  }
  const std::optional<double> test_loss = trainer.evaluate(data.test);
  for (StepObserver* observer : observers) observer->run_done(test_loss);
  trainer.set_observers({});
}

}  // namespace loom::train
