#include "engine/train/update.h"

#include <cmath>
#include <fmt/core.h>
#include <unordered_set>
#include <utility>

#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/nn/optim/gradients.h"
#include "engine/tensor/ops.h"
#include "engine/train/finite.h"
#include "engine/train/inputs.h"
#include "engine/train/make_optimizer.h"
#include "engine/train/not_finite.h"
#include "engine/train/parallel_dims.h"
#include "engine/train/parameter_rules.h"
#include "engine/train/step/marks.h"
#include "sharding/fully_shard.h"
#include "sharding/reuse_fp32.h"
#include "sharding/tensor/share_matrices.h"

namespace loom::train {

Update::Update(Of of) : of_(std::move(of)), expert_loads_(of_.model), schedule_(schedule_of(of_.schedule)) {
  ParameterRules rules = parameter_rules(of_.options, of_.saved);
  said_ = std::move(rules.said);
  nn::GroupOptions grouping = grouping_of(of_.options);
  grouping.rule_of = std::move(rules.rule_of);
  nn::ParameterGroups groups = nn::make_parameter_groups(of_.saved, grouping);
  collect_groups(groups);
  optimizer_ =
      make_optimizer(of_.options, of_.saved, std::move(groups),
                     {.lr = of_.schedule.lr, .weight_decay = schedule_.weight_decay.at(0), .kernels = of_.kernels});
  if (of_.options.fp16) scaler_.emplace(of_.options.loss_scale);
}

void Update::collect_groups(const nn::ParameterGroups& groups) {
  std::unordered_set<const void*> sharded;
  for (const Tensor& parameter : of_.sharded.parameters()) sharded.insert(parameter.id());
  for (const nn::ParameterGroup& group : groups) {
    decays_.push_back(!group.weight_decay);
    for (const nn::OptimizedParameter& parameter : group.parameters) {
      if (!sharded.contains(parameter.value.id())) beside_.push_back(parameter.value);
    }
  }
}

Tensor Update::scaled(const Tensor& loss) const {
  return scaler_ ? ops::scale(ops::cast(loss, DType::kF32), scaler_->scale()) : loss;
}

void Update::restore(TrainState& state) {
  if (scaler_ && scaler_->dynamic() && state.loss_scale) scaler_->set_state(*state.loss_scale);
  note_scale(state);
}

void Update::note_scale(TrainState& state) const {
  state.loss_scale = scaler_ && scaler_->dynamic() ? std::optional(scaler_->state()) : std::nullopt;
}

double Update::unclipped_norm() {
  if (of_.is_sharded) return sharding::grad_norm(of_.sharded);
  return std::sqrt(nn::gradient_sum_of_squares(optimizer_->parameters()));
}

// Takes the loss scale out of the gradients too; `norm` is without it.
void Update::clip(double norm) {
  const double clip_grad = of_.options.clip_grad;
  const std::vector<Tensor> clipped = of_.is_sharded ? of_.sharded.parameters() : optimizer_->parameters();
  if (!scaler_) {
    if (clip_grad > 0) nn::clip_gradients(clipped, norm, clip_grad);
    return;
  }
  const double unscale = 1.0 / scaler_->scale();
  const double factor = clip_grad > 0 ? std::min(1.0, clip_grad / (norm + 1e-6)) : 1.0;
  nn::scale_gradients(clipped, factor * unscale);
  if (of_.is_sharded) nn::scale_gradients(beside_, unscale);
}

// The norm is over all ranks; what is beside the sharded part has none.
bool Update::overflows(double norm) {
  double found = std::isfinite(norm) ? 0.0 : 1.0;
  if (beside_.empty()) return found > 0;
  if (!std::isfinite(nn::gradient_sum_of_squares(beside_))) found = 1.0;
  mean_over(of_.loss_axis, {&found, 1});
  return found > 0;
}

// An overflow that a smaller scale may heal is no error.
void Update::check_overflow(double norm, std::int64_t iteration) const {
  if (!of_.options.check_for_nan_in_loss_and_grad || !scaler_->at_its_end()) return;
  raise<Error>(
      "found {} in grad norm: iteration {} of {}, at the loss scale {}, which is {}; {}; {}, look at the data, write "
      "param_dtype: bf16 with --bf16, or skip each such update with --no-check-for-nan-in-loss-and-grad",
      not_finite(norm).value_or("NaN or Inf"), iteration, of_.schedule.train_iters, scaler_->scale(),
      scaler_->dynamic() ? "as low as --min-loss-scale allows" : "constant", what_is_kept(of_.checkpoint),
      scaler_->dynamic() ? "lower --min-loss-scale" : "lower --loss-scale");
}

// Every rank has the same norm, and so all of them come to the exchange.
void Update::check_norm(double norm, std::int64_t iteration) const {
  const auto found = not_finite(norm);
  if (!found || !of_.options.check_for_nan_in_loss_and_grad) return;
  raise_not_finite({*found, "grad norm", first_bad_gradient()}, {iteration, of_.schedule.train_iters}, of_.checkpoint);
}

// The first one, in the order of the parameters, that any rank has. Collective.
std::string Update::first_bad_gradient() const {
  std::string own;
  std::size_t number = 0;
  for (const nn::ParameterGroup& group : std::as_const(*optimizer_).groups()) {
    for (const nn::OptimizedParameter& parameter : group.parameters) {
      ++number;
      if (own.empty() && !std::isfinite(nn::gradient_sum_of_squares({parameter.value}))) {
        own = fmt::format("{:012d} '{}' on rank {}", number, parameter.path, of_.rank);
      }
    }
  }
  if (of_.loss_axis.size() > 1) {
    for (const auto& said : comm::exchange_lines(of_.loss_axis.group(), own, "gradients that are not finite")) {
      if (!said.empty() && (own.empty() || said.front() < own)) own = said.front();
    }
  }
  return own.empty() ? "" : fmt::format(", first in the gradient of {}", own.substr(own.find(' ') + 1));
}

// Summing all gradients first would mean waiting for the last one to arrive.
bool Update::precedes_norm() const {
  return !waits_in_backward(of_.options, of_.kernels) && of_.options.clip_grad == 0 && !scaler_ &&
         !of_.options.check_for_nan_in_loss_and_grad;
}

void Update::step(TrainState& state) {
  optimizer_->set_lr(schedule_.lr.at(state.schedule_samples));
  const double weight_decay = schedule_.weight_decay.at(state.schedule_samples);
  for (std::size_t group = 0; group < decays_.size(); ++group) {
    if (decays_[group]) optimizer_->groups()[group].weight_decay = weight_decay;
  }
  device::Device::current().log().add_mark({.kind = kOptimizerMark});
  {
    std::optional<sharding::JoinedShards> joined;
    if (of_.reuse_fp32_param) joined.emplace(of_.model);
    optimizer_->step();
  }
  state.schedule_samples += of_.schedule.global_batch_size;
}

void Update::clip_and_step(TrainState& state, StepMetrics& metrics) {
  const double norm = unclipped_norm();
  metrics.grad_norm = scaler_ ? norm / scaler_->scale() : norm;
  metrics.skipped = scaler_ && overflows(norm);
  if (metrics.skipped) return check_overflow(norm, state.step + 1);
  check_norm(metrics.grad_norm, state.step + 1);
  clip(metrics.grad_norm);
  step(state);
}

void Update::take(TrainState& state, StepMetrics& metrics) {
  sharding::sum_partial_gradients(of_.sharded);
  metrics.lr = schedule_.lr.at(state.schedule_samples);
  if (precedes_norm()) {
    step(state);
    metrics.grad_norm = unclipped_norm();
  } else {
    clip_and_step(state, metrics);
  }
  metrics.grad_norm = without_nan_sign(metrics.grad_norm);
  optimizer_->zero_grad();
  expert_loads_.end_step(*of_.everyone, of_.stages.get(), metrics);
  metrics.next_lr = schedule_.lr.at(state.schedule_samples);
  if (!scaler_) return;
  scaler_->update(metrics.skipped);
  note_scale(state);
  metrics.loss_is_scaled = true;
  metrics.loss_scale = scaler_->scale();
}

}  // namespace loom::train
