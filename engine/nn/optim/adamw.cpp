#include "engine/nn/optim/adamw.h"

#include "engine/device/device.h"
#include "engine/kernels/fused.h"

namespace loom::nn {
namespace {

Tensor moment_like(const Tensor& parameter) {
  const DType dtype = parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  Tensor moment = Tensor::empty_beside(parameter, parameter.shape(), dtype, device::MemCategory::kOptimizerState,
                                       "optimizer state");
  moment.fill(0);
  return moment;
}

// Work on `tensor` and what lies beside it, on the device or on the CPU.
template <class F>
void run_beside(const Tensor& tensor, std::string_view kernel, const device::Cost& cost, F&& run) {
  device::Device& device = device::Device::current();
  if (tensor.storage()->place() == Place::kHost) {
    device.run_on_host(kernel, cost, run);
  } else {
    device.launch(kernel, cost, run);
  }
}

}  // namespace

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& options) : options_(options) {
  for (Tensor& parameter : parameters) {
    if (parameter.requires_grad()) parameters_.push_back(std::move(parameter));
  }
  states_.resize(parameters_.size());
}

// The square roots of the second moments, which PyTorch's foreach implementation holds all at once.
std::vector<Tensor> AdamW::foreach_temporaries() const {
  std::vector<Tensor> temporaries;
  if (!options_.foreach) return temporaries;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    if (!parameter.grad().defined() || parameter.storage()->place() == Place::kHost) continue;
    temporaries.push_back(Tensor::empty(parameter.shape(), parameter.dtype(), device::MemCategory::kTemporary,
                                        "square root of a second moment"));
  }
  return temporaries;
}

void AdamW::step() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    State& state = states_[i];
    if (state.m.defined() || !parameters_[i].grad().defined()) continue;
    state.m = moment_like(parameters_[i]);
    state.v = moment_like(parameters_[i]);
  }
  const std::vector<Tensor> temporaries = foreach_temporaries();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    const Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    State& state = states_[i];
    ++state.step;
    const kernels::AdamW op{.lr = options_.lr,
                            .beta1 = options_.beta1,
                            .beta2 = options_.beta2,
                            .eps = options_.eps,
                            .weight_decay = options_.weight_decay,
                            .grad_scale = 1.0,
                            .step = state.step};
    const device::Cost cost{12.0 * static_cast<double>(parameter.numel()), grad.nbytes() + 3 * parameter.nbytes(),
                            3 * parameter.nbytes()};
    run_beside(parameter, "adamw", cost, [&] {
      kernels::adamw(op, parameter.dtype(), parameter.numel(), parameter.raw(), grad.dtype(), grad.raw(), state.m.raw(),
                     state.v.raw());
    });
    parameter.storage()->bump_version();
  }
}

void AdamW::zero_grad() {
  for (const Tensor& parameter : parameters_) parameter.set_grad({});
}

double gradient_sum_of_squares(const std::vector<Tensor>& parameters) {
  double sum = 0;
  for (const Tensor& parameter : parameters) {
    const Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    const device::Cost cost{2.0 * static_cast<double>(grad.numel()), grad.nbytes()};
    run_beside(grad, "grad_norm", cost,
               [&] { sum += kernels::sum_of_squares(grad.dtype(), grad.numel(), grad.raw()); });
  }
  return sum;
}

void scale_gradients(const std::vector<Tensor>& parameters, double factor) {
  for (const Tensor& parameter : parameters) {
    const Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    const device::Cost cost{static_cast<double>(grad.numel()), grad.nbytes(), grad.nbytes()};
    run_beside(grad, "grad_clip", cost,
               [&] { kernels::scale(grad.dtype(), grad.numel(), factor, grad.raw(), grad.raw()); });
  }
}

}  // namespace loom::nn
