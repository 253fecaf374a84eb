// Update: the work after the backward of a step on a rank: the gradient norm, the loss scale, clipping, the optimizer's
// step, the schedules of learning rate and weight decay, and the loads of experts (expert_loads.h).
//
// Norm      of the gradients as backward left them, the same bits on every rank; without the loss scale.
// Order     norm, overflow, clipping, optimizer. Without clipping, loss scale and check_for_nan_in_loss_and_grad the
//           optimizer takes each gradient as it arrives on the host, and the norm comes last.
// Overflow  a gradient of any rank that is NaN or Inf under a loss scale skips the update on all ranks, and the
//           schedules stay. At a scale that cannot fall it is an Error, with check_for_nan_in_loss_and_grad.
// Errors    Error for a norm that is not finite, with check_for_nan_in_loss_and_grad, before the optimizer changes
//           anything; it names the first such gradient of any rank.
// Threads   the rank's host thread; take() is collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/nn/module.h"
#include "engine/nn/optim/optimizer.h"
#include "engine/train/checkpoint_options.h"
#include "engine/train/expert_loads.h"
#include "engine/train/kernel_choice.h"
#include "engine/train/loss_scaler.h"
#include "engine/train/optimizer_options.h"
#include "engine/train/optimizer_schedule.h"
#include "engine/train/schedule_options.h"
#include "engine/train/step/step_metrics.h"
#include "engine/train/train_state.h"

namespace loom::train {

class Update {
 public:
  // The references outlive it.
  struct Of {
    const OptimizerOptions& options;
    const ScheduleOptions& schedule;
    const CheckpointOptions& checkpoint;  // for the text of errors
    KernelSet kernels = KernelSet::kFast;
    bool reuse_fp32_param = false;
    nn::Module& model;
    nn::Module& sharded;  // the model, or the part of it that fully_shard() was applied to
    nn::Module& saved;    // the optimizer's paths are relative to it
    bool is_sharded = false;
    comm::Axis loss_axis;
    std::shared_ptr<comm::ProcessGroup> everyone;  // of this stage
    std::shared_ptr<comm::ProcessGroup> stages;    // of a pipeline of a model with experts, else null
    int rank = 0;
  };
  explicit Update(Of of);

  nn::Optimizer& optimizer() { return *optimizer_; }
  // Notes from construction.
  const std::vector<std::string>& said() const { return said_; }
  const OptimizerSchedule& schedule() const { return schedule_; }
  void set_schedule(const OptimizerSchedule& schedule) { schedule_ = schedule; }

  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  // The start of backward: the loss, times the loss scale if there is one.
  Tensor scaled(const Tensor& loss) const;
  // Restores a dynamic loss scale from the state; then the state holds the scale of this object.
  void restore(TrainState& state);

  // Runs after the backward of step state.step. Sets the update's figures in `metrics`; in the state, the loss scale
  // and the samples that moved the schedules.
  void take(TrainState& state, StepMetrics& metrics);

 private:
  void collect_groups(const nn::ParameterGroups& groups);
  double unclipped_norm();
  void clip(double norm);
  bool overflows(double norm);
  void check_overflow(double norm, std::int64_t iteration) const;
  void check_norm(double norm, std::int64_t iteration) const;
  std::string first_bad_gradient() const;
  bool precedes_norm() const;
  void clip_and_step(TrainState& state, StepMetrics& metrics);
  void step(TrainState& state);
  void note_scale(TrainState& state) const;

  const Of of_;
  ExpertLoads expert_loads_;
  OptimizerSchedule schedule_;
  std::optional<LossScaler> scaler_;  // of --fp16
  std::unique_ptr<nn::Optimizer> optimizer_;
  std::vector<std::string> said_;
  std::vector<bool> decays_;    // by group of the optimizer: its weight decay is the schedule's
  std::vector<Tensor> beside_;  // tensors that the optimizer updates beside the parameters of the sharded part
};

}  // namespace loom::train
