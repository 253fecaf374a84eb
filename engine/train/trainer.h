// Trainer: one rank's training run.
//
// Step      for every micro-batch: gather, forward, loss / micro-batches, backward, reduction (every micro-batch is
//           reduced); then the global gradient norm, clipping, AdamW.
// Batch     rank r takes rows [r * B / W, (r + 1) * B / W) of every global batch B (byte_dataset.h): the curve does not
//           depend on W, up to rounding.
// Loss      mean over the global batch, in nats per byte, the same on every rank.
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "engine/comm/process_group.h"
#include "engine/device/device.h"
#include "engine/nn/adamw.h"
#include "engine/nn/module.h"
#include "engine/train/inputs.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/metrics.h"

namespace loom::train {

// Gives the rank its device, compute threads and kernel grain, as asked for. Before any tensor is made.
void set_up_rank(RankContext& context, const TrainArguments& arguments);

class Trainer {
 public:
  // Builds, shards and fills the model. Collective. The rank is set up; `inputs` outlives the trainer.
  Trainer(const TrainArguments& arguments, const TrainingInputs& inputs, comm::World& world);

  // Trains to the end; rank 0 reports to `out` and writes metrics.
  void run(std::ostream& out);
  // One optimizer step, counted from 0. Marks the trace where backward (B) and the optimizer (O) begin.
  StepMetrics step(std::int64_t step);
  // Mean loss over --eval-iters global batches of held-out data; none without such data.
  std::optional<double> held_out_loss();
  // Writes the model folder. Collective; rank 0 writes.
  void save(const std::filesystem::path& folder);
  // `count` bytes that continue the prompt, drawn with the run's seed. Collective.
  std::string sample(const std::string& prompt, int count);

  nn::Module& model() { return *model_; }

 private:
  // Reads one micro-batch; returns (inputs, targets), both [micro, seq] int32 on the host.
  std::pair<Tensor, Tensor> batch(const ByteDataset& data, std::span<const std::int64_t> rows) const;
  double micro_batch(std::int64_t step, std::int64_t index);
  double mean_over_ranks(double value);
  double clip();
  bool is_shown(std::int64_t step) const;
  bool is_first_rank() const { return world_group_->rank() == 0; }

  const TrainArguments& arguments_;
  const TrainingInputs& inputs_;
  std::shared_ptr<comm::ProcessGroup> world_group_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  LrSchedule schedule_;
  std::int64_t micro_batches_;  // per rank and step
};

}  // namespace loom::train
