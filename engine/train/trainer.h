// Trainer: one rank's training run.
//
// Step      for every micro-batch: forward_step and loss_func of the callbacks, loss / micro-batches, backward,
//           reduction (every micro-batch is reduced); then the global gradient norm, clipping, AdamW.
// Batch     rank r takes rows [r * B / W, (r + 1) * B / W) of every global batch B (byte_dataset.h): the curve does not
//           depend on W, up to rounding.
// Loss      mean over the global batch, the same on every rank.
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>

#include "engine/comm/process_group.h"
#include "engine/device/device.h"
#include "engine/nn/adamw.h"
#include "engine/nn/module.h"
#include "engine/train/inputs.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/metrics.h"
#include "engine/train/pretrain.h"

namespace loom::train {

class Progress;
class RunReport;

// Gives the rank its device, compute threads and kernel grain, as asked for. Before any tensor is made.
void set_up_rank(RankContext& context, const TrainArguments& arguments);
// The kernel grain alone, for a rank with a device of another kind.
void set_kernel_grain(RankContext& context, const TrainArguments& arguments);

class Trainer {
 public:
  // Builds, shards and fills the model. Collective. The rank is set up; the references outlive the trainer.
  Trainer(const TrainArguments& arguments, const PretrainCallbacks& callbacks, const TrainingInputs& inputs,
          comm::World& world);
  ~Trainer();

  // Trains to the end; rank 0 reports to `out` and writes metrics.
  void run(std::ostream& out);
  // One optimizer step, counted from 0. Marks the trace where backward (B) and the optimizer (O) begin.
  StepMetrics step(std::int64_t step);
  // Mean loss over the first --eval-iters global batches of a loader; none for an empty one.
  std::optional<double> evaluate(const DataLoader& loader);
  // Writes the model folder. Collective; rank 0 writes.
  void save(const std::filesystem::path& folder);

  // Called when a phase of a step begins: "forward" and "backward" for every micro-batch, "optimizer" (clipping
  // included), "end". The timeline, where enabled, gets the same marks.
  using PhaseObserver = std::function<void(std::string_view phase)>;
  void observe_phases(PhaseObserver observer) { phase_observer_ = std::move(observer); }

  // The page of --report; nothing without it, and on other ranks. After run().
  void write_report(std::ostream& out) const;

  nn::Module& model() { return *model_; }

 private:
  using Reports = std::vector<std::pair<std::string, double>>;
  void shard_and_fill(comm::World& world);
  // This rank's micro-batches of a loader, from sample 0 on.
  DataIterator iterate(const DataLoader& loader) const;
  Loss forward(DataIterator& data);
  double micro_batch(Reports& reports);
  void begin_phase(std::string_view phase);
  // A step of run(): watched for --print-schedule and --report where it is the one.
  StepMetrics watched_step(std::int64_t step, Progress& progress);
  std::unique_ptr<RunReport> make_report() const;
  void mean_over_ranks(std::span<double> values);
  double clip();
  bool is_shown(std::int64_t step) const;
  bool is_first_rank() const { return world_group_->rank() == 0; }

  const TrainArguments& arguments_;
  const PretrainCallbacks& callbacks_;
  const TrainingInputs& inputs_;
  std::shared_ptr<comm::ProcessGroup> world_group_;
  std::shared_ptr<nn::Module> model_;
  nn::Module& sharded_;  // what the file's paths and the weights' names are relative to: the model or a part of it
  std::unique_ptr<nn::AdamW> optimizer_;
  LrSchedule schedule_;
  std::int64_t micro_batches_;  // per rank and step
  DataIterator train_data_;
  PhaseObserver phase_observer_;
  std::unique_ptr<RunReport> report_;  // null: none is asked for, or another rank
};

}  // namespace loom::train
