#include "engine/nn/optim/sgd.h"

#include "engine/core/error.h"
#include "engine/kernels/momentum.h"
#include "engine/nn/optim/landing.h"
#include "engine/nn/optim/moments.h"
#include "engine/nn/optim/run_beside.h"

namespace loom::nn {

Sgd::Sgd(ParameterGroups groups, const SgdOptions& options) : Optimizer(std::move(groups)), options_(options) {
  if (options.nesterov && options.momentum == 0) {
    config_error("SGD: Nesterov's form needs a momentum above 0");
  }
  if (options.nesterov && options.dampening != 0) {
    config_error("SGD: Nesterov's form needs dampening 0, and it is {}", options.dampening);
  }
  for (ParameterGroup& group : this->groups()) {
    if (!group.lr) group.lr = options.lr * group.lr_mult;
    if (!group.weight_decay) group.weight_decay = options.weight_decay;
  }
}

void Sgd::update(const Tensor& parameter, const Tensor& grad, const ParameterGroup& group) {
  kernels::Sgd op{.dtype = parameter.dtype(),
                  .grad_dtype = grad.dtype(),
                  .elems = parameter.numel(),
                  .lr = group.lr.value(),
                  .momentum = options_.momentum,
                  .dampening = options_.dampening,
                  .weight_decay = group.weight_decay.value(),
                  .nesterov = options_.nesterov};
  Tensor buffer;
  if (options_.momentum != 0) {
    Tensor& kept = buffers_[parameter.id()];
    op.first = !kept.defined();
    if (op.first) kept = empty_moment_like(parameter);
    buffer = kept;
  }
  const std::int64_t moved = buffer.defined() ? 2 * parameter.nbytes() : parameter.nbytes();
  const device::Cost cost{6.0 * static_cast<double>(parameter.numel()), grad.nbytes() + moved, moved};
  run_beside(parameter, "sgd", cost,
             [&] { kernels::sgd(op, parameter.raw(), grad.raw(), buffer.defined() ? buffer.raw() : nullptr); });
  parameter.storage()->bump_version();
}

void Sgd::step() {
  for (const ParameterGroup& group : groups()) {
    for (const OptimizedParameter* parameter : in_landing_order(group)) {
      const Tensor grad = parameter->value.grad();
      wait_until_landed(grad);
      update(parameter->value, grad, group);
    }
  }
}

StateNames Sgd::state_names(const ParameterGroup&) const {
  if (options_.momentum == 0) return {};
  return {{"momentum_buffer"}, {}};
}

ParameterState Sgd::state_of(const OptimizedParameter& parameter) const {
  const auto found = buffers_.find(parameter.value.id());
  if (found == buffers_.end()) return {};
  return {{"momentum_buffer", LocalTensor{found->second, parameter.shard}}};
}

ParameterState Sgd::make_state(const ParameterGroup&, const OptimizedParameter& parameter, const ParameterState&) {
  Tensor& buffer = buffers_[parameter.value.id()];
  if (!buffer.defined()) buffer = empty_moment_like(parameter.value);
  return state_of(parameter);
}

std::map<std::string, double> Sgd::options(const ParameterGroup&) const {
  return {
      {"momentum", options_.momentum}, {"dampening", options_.dampening}, {"nesterov", options_.nesterov ? 1.0 : 0.0}};
}

void Sgd::set_options(const ParameterGroup&, const std::map<std::string, double>& options) {
  options_.momentum = options.at("momentum");
  options_.dampening = options.at("dampening");
  options_.nesterov = options.at("nesterov") != 0;
}

}  // namespace loom::nn
