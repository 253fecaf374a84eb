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
// fp16      the loss is multiplied by the loss scale (loss_scaler.h) before backward; clipping divides the gradients
//           by it. A step without an update counts its samples and its iteration.
// Offload   with offload_to_cpu gradients are squared and used in the order in which they arrive on the host, unless
//           PyTorch's order of events is kept (waits_in_backward, inputs.h). The bits are the same.
// Position  state(), a value; a step depends on earlier steps through it, weights and optimizer state alone.
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
#include "engine/train/backward_switches.h"
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

class Pipeline;
class PipelineStage;
class Update;

// A rank's request to stop, and the request that all ranks agreed on.
struct StopRequest {
  int signal = 0;           // one of launch::kStopSignals, or 0
  bool time_is_up = false;  // --exit-duration-in-mins has passed
};

class Trainer {
 public:
  // Builds, shards and fills the model. Collective. The rank exists already (rank_setup.h); the references outlive it.
  Trainer(const TrainSections& arguments, const PretrainCallbacks& callbacks, const TrainingInputs& inputs,
          comm::World& world);
  ~Trainer();

  // Runs the next optimizer step: number state().step, from 0. Marks the beginning of its phases in the recording, and
  // notifies the observers.
  StepMetrics step();
  // Passes over the next iterations of --iterations-to-skip: their samples are consumed; weights,
  // optimizer, schedules and random numbers do not change. Notifies the observers of each.
  void skip_iterations();
  // Means over the first --eval-iters global batches of a loader, from its sample 0 on; none for an empty one, and,
  // with a warning, if no token of them counts.
  std::optional<Evaluation> evaluate(const data::DataLoader& loader);
  // Writes the model folder; for a model with adapters, peft's folder of these alone. Collective; the rank that reports
  // writes. Weights that are not finite are not written, so that no good file is replaced; that rank then returns the
  // text of the problem.
  std::optional<std::string> save(const std::filesystem::path& folder);

  // The source of this rank's stop requests. Every rank sets one, or no rank does. Later steps agree on the request
  // in the exchange that averages the losses.
  void set_stop_request(std::function<StopRequest()> request) { stop_request_ = std::move(request); }
  // The request that the ranks agreed on in the last step, when the losses were averaged; the same on every rank.
  StopRequest agreed_stop() const { return agreed_stop_; }

  // If no step counted a token: the text for the end of the run, the same on every rank (uncounted_steps.h).
  std::optional<std::string> problem() const { return uncounted_.problem(); }

  // The order of a step's work from the next step on; without it, accumulation(). InvariantError for a list that is not
  // complete. The steps of a model without shards reduce nothing.
  void set_schedule(std::vector<Action> actions);

  // Notes from construction, which one rank prints.
  const std::vector<std::string>& said() const { return said_; }

  // Observers of every following step. They must outlive the trainer.
  void set_observers(std::vector<StepObserver*> observers) { observers_ = std::move(observers); }

  nn::Module& model() { return *model_; }
  // The root of the weights' names: the model or a part of it. Its state dict is
  // sharding::local_state_dict(sharded_module()).
  nn::Module& sharded_module() { return sharded_; }
  nn::Optimizer& optimizer();
  // The contents of a checkpoint: sharded_module(), or the model if it trains something beside that. The optimizer's
  // paths are relative to it.
  nn::Module& saved_module();
  const ParallelDims& dims() const { return dims_; }
  // Null: the rank has the whole model.
  const Pipeline* pipeline() const { return pipeline_.get(); }
  // The folder of the weights that the model starts from; empty: it has none.
  std::string base_model() const;
  const TrainingInputs& inputs() const { return inputs_; }

  // The factor on the gradients of the current step; 1 without --fp16.
  double loss_scale() const;

  // Between steps. The argument of set_state() comes from a trainer of the same job, whose weights and optimizer state
  // are loaded too. ConfigError for another --seed or a negative number.
  const TrainState& state() const { return state_; }
  void set_state(const TrainState& state);

  // The schedule of a checkpoint, between steps: continued_schedule() decides which one holds from now on; it continues
  // at the checkpoint's position.
  ScheduleState schedule_state() const;
  void load_schedule(const ScheduleState& saved);

 private:
  void check_adapters();
  void provide_auxiliary(objective::Auxiliary kind, comm::World& world);
  std::unique_ptr<Update> make_update(comm::World& world);
  // The samples of this rank's micro-batch number `index` of the step that begins at `first_sample`.
  std::vector<std::int64_t> rows_of(std::int64_t first_sample, std::int64_t index) const;
  // `place`: the place in the run, for errors from the program's callbacks.
  data::Loss forward(data::DataIterator data, nn::Module& model, std::string_view place);
  // A rank's micro-batches of a step, and the weight of the loss of each.
  struct StepData {
    std::vector<data::DataIterator> micro_batches;
    std::vector<double> weights;  // their sum, averaged over the ranks, is 1; all 0 if no token counts
  };
  // The state of a step between its actions.
  struct StepWork {
    StepData data;
    std::vector<Tensor> losses;  // of forwards whose backward has not run
    double loss = 0.0;           // sum of the losses that were read
    Reports reports = {};
  };
  StepData data_of_step();
  StepData counted_data_of_step();
  void check_counted(double scored);
  StepWork run_actions();
  void run_forward(StepWork& work, std::size_t micro_batch, nn::Module& model);
  Tensor run_stage(StepWork& work, PipelineStage& stage, std::size_t micro_batch);
  void read_loss(StepWork& work, std::size_t micro_batch) const;
  void run_backward(StepWork& work, std::size_t at);
  void begin_phase(std::string_view phase);
  void add_tokens_per_sample(Reports& reports) const;
  void mean_of_step(double loss, StepMetrics& metrics);
  void add_request(std::vector<double>& means) const;
  static StopRequest agreed_on(std::span<const double> means);
  bool reports() const { return dims_.reports(rank_); }
  std::string place() const;
  std::vector<double> sums_of_evaluation(const data::DataLoader& loader, Reports& reports);

  const TrainSections& arguments_;
  const PretrainCallbacks& callbacks_;
  const TrainingInputs& inputs_;
  const int rank_;  // of the world
  const ParallelDims dims_;
  const comm::DeviceMesh mesh_;
  const comm::Axis loss_axis_;
  const std::unique_ptr<Pipeline> pipeline_;  // null: the rank has the whole model
  std::shared_ptr<nn::Module> model_;
  nn::Module& sharded_;  // the root of the file's paths and the weights' names: the model or a part of it
  objective::RankObjective objective_;
  std::vector<std::string> said_;
  std::unique_ptr<Update> update_;
  std::int64_t micro_batches_;  // per rank and step
  std::vector<Action> actions_;
  BackwardSwitches switches_;
  TrainState state_;
  const data::DataLoader watched_train_;  // the training data, whose tokens are added up in tokens_
  double tokens_ = 0;                     // of the step, on this rank
  UncountedSteps uncounted_;
  std::vector<StepObserver*> observers_;
  std::function<StopRequest()> stop_request_;
  StopRequest agreed_stop_;
};

}  // namespace loom::train
