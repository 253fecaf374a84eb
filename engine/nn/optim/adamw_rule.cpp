#include "engine/nn/optim/adamw_rule.h"

#include "engine/kernels/fused.h"
#include "engine/nn/optim/moments.h"
#include "engine/nn/optim/run_beside.h"

namespace loom::nn {

void AdamWRule::make_moments(const ParameterGroup& group) {
  for (const OptimizedParameter& parameter : group.parameters) {
    if (!parameter.value.grad().defined()) continue;
    State& state = states_[parameter.value.id()];
    if (state.m.defined()) continue;
    state.m = moment_like(parameter.value);
    state.v = moment_like(parameter.value);
  }
}

// The square roots of the second moments, which PyTorch's foreach implementation holds all at once.
std::vector<Tensor> AdamWRule::foreach_temporaries(const ParameterGroup& group) const {
  std::vector<Tensor> temporaries;
  if (!options_.foreach) return temporaries;
  for (const auto& [path, parameter, shard] : group.parameters) {
    if (!parameter.grad().defined() || parameter.storage()->place() == Place::kHost) continue;
    temporaries.push_back(Tensor::empty(parameter.shape(), parameter.dtype(), device::MemCategory::kTemporary,
                                        "square root of a second moment"));
  }
  return temporaries;
}

void AdamWRule::update(const Tensor& parameter, const Tensor& grad, const ParameterGroup& group) {
  State& state = states_.at(parameter.id());
  ++state.step;
  const kernels::AdamW op{.dtype = parameter.dtype(),
                          .grad_dtype = grad.dtype(),
                          .elems = parameter.numel(),
                          .lr = group.lr.value(),
                          .beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .eps = options_.eps,
                          .weight_decay = group.weight_decay.value(),
                          .grad_scale = 1.0,
                          .step = state.step};
  const device::Cost cost{12.0 * static_cast<double>(parameter.numel()), grad.nbytes() + 3 * parameter.nbytes(),
                          3 * parameter.nbytes()};
  run_beside(parameter, "adamw", cost,
             [&] { kernels::adamw(op, parameter.raw(), grad.raw(), state.m.raw(), state.v.raw()); });
  parameter.storage()->bump_version();
}

void AdamWRule::step(const ParameterGroup& group) {
  make_moments(group);
  const std::vector<Tensor> temporaries = foreach_temporaries(group);
  for (const auto& [path, parameter, shard] : group.parameters) {
    if (const Tensor grad = parameter.grad(); grad.defined()) update(parameter, grad, group);
  }
}

ParameterState AdamWRule::state_of(const OptimizedParameter& parameter) const {
  const auto found = states_.find(parameter.value.id());
  if (found == states_.end()) return {};
  const auto& [m, v, step] = found->second;
  return {{"exp_avg", LocalTensor{m, parameter.shard}},
          {"exp_avg_sq", LocalTensor{v, parameter.shard}},
          {"step", static_cast<double>(step)}};
}

ParameterState AdamWRule::make_state(const OptimizedParameter& parameter, const ParameterState& numbers) {
  State& state = states_[parameter.value.id()];
  if (!state.m.defined()) {
    state.m = empty_moment_like(parameter.value);
    state.v = empty_moment_like(parameter.value);
  }
  state.step = static_cast<std::int64_t>(std::get<double>(numbers.at("step")));
  return state_of(parameter);
}

std::map<std::string, double> AdamWRule::options() const {
  return {{"beta1", options_.beta1}, {"beta2", options_.beta2}, {"eps", options_.eps}};
}

void AdamWRule::set_options(const std::map<std::string, double>& options) {
  options_.beta1 = options.at("beta1");
  options_.beta2 = options.at("beta2");
  options_.eps = options.at("eps");
}

}  // namespace loom::nn
