#include "engine/nn/optim/adamw_rule.h"

#include <array>

#include "engine/nn/optim/adamw_update.h"
#include "engine/nn/optim/landing.h"
#include "engine/nn/optim/moments.h"
#include "engine/nn/optim/run_beside.h"

namespace loom::nn {
namespace {

// As torch.optim.AdamW(foreach=True) with tensors of the CPU: passes over all parameters of a group, each of
// which reads and writes so many arrays of a parameter's size.
struct HostPass {
  std::string_view name;
  int read;
  int written;
};
constexpr std::array<HostPass, 8> kForeachPasses{{
    {"foreach_mul", 1, 1},      // decay of the weights
    {"foreach_lerp", 2, 1},     // first moment
    {"foreach_mul", 1, 1},      // second moment
    {"foreach_addcmul", 2, 1},  // gradient squared: read once
    {"foreach_sqrt", 1, 1},     // into a temporary
    {"foreach_div", 1, 1},      // bias correction
    {"foreach_add", 1, 1},      // eps
    {"foreach_addcdiv", 3, 1},  // the weights
}};

device::Cost cost_of(const HostPass& pass, const Tensor& parameter) {
  return {static_cast<double>(parameter.numel()), pass.read * parameter.nbytes(), pass.written * parameter.nbytes()};
}

bool is_on_host(const Tensor& tensor) { return tensor.storage()->place() == Place::kHost; }

// They cost time and compute nothing here: the last pass computes the update in one.
void issue_passes_before_last(const std::vector<const OptimizedParameter*>& parameters) {
  for (const OptimizedParameter* parameter : parameters) wait_until_landed(parameter->value.grad());
  for (auto pass = kForeachPasses.begin(); pass + 1 != kForeachPasses.end(); ++pass) {
    for (const OptimizedParameter* parameter : parameters) {
      if (!is_on_host(parameter->value)) continue;
      device::Device::current().run_on_host(pass->name, cost_of(*pass, parameter->value), [] {});
    }
  }
}

}  // namespace

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
  const kernels::AdamW op = adamw_update(parameter, grad, group, options_, parameter.numel(), ++state.step);
  const auto run = [&] { kernels::adamw(op, parameter.raw(), grad.raw(), state.m.raw(), state.v.raw()); };
  if (options_.foreach && is_on_host(parameter)) {
    const HostPass& last = kForeachPasses.back();
    device::Device::current().run_on_host(last.name, cost_of(last, parameter), run);
  } else {
    run_beside(parameter, "adamw", adamw_cost(op), run);
  }
  parameter.storage()->bump_version();
}

void AdamWRule::step(const ParameterGroup& group) {
  make_moments(group);
  const std::vector<Tensor> temporaries = foreach_temporaries(group);
  const std::vector<const OptimizedParameter*> parameters = in_landing_order(group);
  if (options_.foreach) issue_passes_before_last(parameters);
  for (const OptimizedParameter* parameter : parameters) {
    const Tensor grad = parameter->value.grad();
    wait_until_landed(grad);
    update(parameter->value, grad, group);
  }
}

ParameterState AdamWRule::state_of(const OptimizedParameter& parameter) const {
  const auto found = states_.find(parameter.value.id());
  return found == states_.end() ? ParameterState{} : found->second.named(parameter.shard);
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

ParameterState AdamWState::named(const ShardSpec& shard) const {
  return {
      {"exp_avg", LocalTensor{m, shard}}, {"exp_avg_sq", LocalTensor{v, shard}}, {"step", static_cast<double>(step)}};
}

std::map<std::string, double> saved_options(const AdamWOptions& options) {
  return {{"beta1", options.beta1}, {"beta2", options.beta2}, {"eps", options.eps}};
}

void load_options(AdamWOptions& options, const std::map<std::string, double>& saved) {
  options.beta1 = saved.at("beta1");
  options.beta2 = saved.at("beta2");
  options.eps = saved.at("eps");
}

}  // namespace loom::nn
