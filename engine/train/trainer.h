// Trainer: one rank's training run.
//
// Step      the actions of a schedule over the micro-batches (schedule/actions.h): forward_step and loss_func of the
//           objective, loss / micro-batches, backward, reduction; then update.h.
// Batch     data rank r of D (parallel_dims.h) takes rows [r * B / D, (r + 1) * B / D) of every global batch B
//           (byte_dataset.h): the curve does not depend on D, up to rounding.
// Loss      mean over the global batch, the same on every rank: of its micro-batches, or of its scored tokens where the
//           loaders count them (data::DataLoaders::count_tokens).
// Finite    with check_for_nan_in_loss_and_grad, a loss of this rank that is NaN or Inf is an Error; the other ranks
//           end with it.
// fp16      the loss is multiplied by the loss scale (loss_scaler.h) before backward, the gradients are divided by it
//           where they are clipped. A step whose update is left out counts its samples and its iteration.
// Offload   with offload_to_cpu gradients are squared and used in the order in which they land on the host, unless
//           PyTorch's order of events is kept (waits_in_backward, inputs.h). The bits are the same.
// Position  is state(), a value; nothing else of a step depends on the steps before but weights and optimizer state.
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/nn/module.h"
#include "engine/train/inputs.h"
#include "engine/train/optimizer_schedule.h"
#include "engine/train/parallel_dims.h"
#include "engine/train/schedule/actions.h"
#include "engine/train/step/step_observer.h"
#include "engine/train/train_state.h"
#include "engine/train/uncounted_steps.h"

namespace loom::nn {
class Optimizer;
}

namespace loom::train {

class Update;

// What a rank asks the others to stop for, and what all of them agreed on.
struct StopRequest {
  int signal = 0;           // one of launch::kStopSignals, or 0
  bool time_is_up = false;  // --exit-duration-in-mins is over
};

class Trainer {
 public:
  // Builds, shards and fills the model. Collective. The rank is made (rank_setup.h); the references outlive it.
  Trainer(const TrainSections& arguments, const PretrainCallbacks& callbacks, const TrainingInputs& inputs,
          comm::World& world);
  ~Trainer();

  // The next optimizer step: number state().step, from 0. Marks the recording where its phases begin, and tells the
  // observers.
  StepMetrics step();
  // Passes over the iterations of --iterations-to-skip that come next: their samples are consumed, and weights,
  // optimizer, schedules and random numbers stay. Tells the observers of each.
  void skip_iterations();
  // Means over the first --eval-iters global batches of a loader, from its sample 0 on; none for an empty one, and,
  // with a warning, where no token of them counts.
  std::optional<Evaluation> evaluate(const data::DataLoader& loader);
  // Writes the model folder; of a model with adapters, peft's folder of these alone. Collective; the rank that reports
  // writes. Weights that are not finite are not written, so that nothing good is replaced: that rank then gets the text
  // that says so.
  std::optional<std::string> save(const std::filesystem::path& folder);

  // How this rank knows that the run shall stop. Every rank is given one, or none is. The steps from here on agree on
  // it, with the exchange that averages the losses.
  void set_stop_request(std::function<StopRequest()> request) { stop_request_ = std::move(request); }
  // Of the last step, the same on every rank: what any rank asked for when the losses were averaged.
  StopRequest agreed_stop() const { return agreed_stop_; }

  // Where all steps counted no token: what there is to say at the end, the same on every rank (uncounted_steps.h).
  std::optional<std::string> problem() const { return uncounted_.problem(); }

  // The order of a step's work from the next step on; without it, accumulation(). InvariantError for a list that is not
  // complete. The steps of a model without shards reduce nothing.
  void set_schedule(std::vector<Action> actions);

  // What there is to say of the trainer's making, for one rank to print.
  const std::vector<std::string>& said() const { return said_; }

  // Those who watch every step from now on; they outlive their stay.
  void set_observers(std::vector<StepObserver*> observers) { observers_ = std::move(observers); }

  nn::Module& model() { return *model_; }
  // What the weights' names are relative to: the model or a part of it. Its state dict is
  // sharding::local_state_dict(sharded_module()).
  nn::Module& sharded_module() { return sharded_; }
  nn::Optimizer& optimizer();
  // What a checkpoint holds: sharded_module(), or the model where it trains something beside that. The optimizer's
  // paths are relative to it.
  nn::Module& saved_module();
  const ParallelDims& dims() const { return dims_; }
  // The folder of the weights that the model starts from; empty: it has none.
  std::string base_model() const;
  const TrainingInputs& inputs() const { return inputs_; }

  // By which the gradients of the step under way are multiplied; 1 without --fp16.
  double loss_scale() const;

  // Between steps. What set_state() is given comes from a trainer of the same job, whose weights and optimizer state
  // are loaded too. ConfigError for another --seed or a negative number.
  const TrainState& state() const { return state_; }
  void set_state(const TrainState& state);

  // The schedule of a checkpoint, between steps: continued_schedule() says which holds from now on, and it goes on
  // where the checkpoint's stood.
  ScheduleState schedule_state() const;
  void load_schedule(const ScheduleState& saved);

 private:
  void check_adapters();
  void provide_auxiliary(objective::Auxiliary kind, comm::World& world);
  std::unique_ptr<Update> make_update();
  // The samples of this rank's micro-batch number `index` of the step that begins at `first_sample`.
  std::vector<std::int64_t> rows_of(std::int64_t first_sample, std::int64_t index) const;
  // `place`: of the run, for what the program's callbacks throw.
  data::Loss forward(data::DataIterator data, std::string_view place);
  // What a rank's micro-batches of a step are, and how much the loss of each weighs.
  struct StepData {
    std::vector<data::DataIterator> micro_batches;
    std::vector<double> weights;  // their sum, averaged over the ranks, is 1; all 0 where no token counts
  };
  // A step between its actions.
  struct StepWork {
    StepData data;
    std::vector<Tensor> losses;  // of forwards whose backward has not run
    double loss = 0.0;           // of those that were read
    Reports reports = {};
  };
  StepData data_of_step();
  StepData counted_data_of_step();
  void check_counted(double scored);
  StepWork run_actions();
  void run_forward(StepWork& work, std::size_t micro_batch);
  void read_loss(StepWork& work, std::size_t micro_batch) const;
  void run_backward(StepWork& work, std::size_t micro_batch, bool reduces);
  void begin_phase(std::string_view phase);
  void add_tokens_per_sample(Reports& reports) const;
  void mean_of_step(double loss, StepMetrics& metrics);
  void add_request(std::vector<double>& means) const;
  static StopRequest agreed_on(std::span<const double> means);
  bool reports() const { return dims_.reports(rank_); }

  const TrainSections& arguments_;
  const PretrainCallbacks& callbacks_;
  const TrainingInputs& inputs_;
  const int rank_;  // of the world
  const ParallelDims dims_;
  const comm::DeviceMesh mesh_;
  const comm::Axis loss_axis_;
  std::shared_ptr<nn::Module> model_;
  nn::Module& sharded_;  // what the file's paths and the weights' names are relative to: the model or a part of it
  objective::RankObjective objective_;
  std::vector<std::string> said_;
  std::unique_ptr<Update> update_;
  std::int64_t micro_batches_;  // per rank and step
  std::vector<Action> actions_;
  bool reduces_ = true;  // what the last backward was told
  TrainState state_;
  const data::DataLoader watched_train_;  // the training data, whose tokens are added up in tokens_
  double tokens_ = 0;                     // of the step, on this rank
  UncountedSteps uncounted_;
  std::vector<StepObserver*> observers_;
  std::function<StopRequest()> stop_request_;
  StopRequest agreed_stop_;
};

}  // namespace loom::train
