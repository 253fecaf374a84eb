#include "engine/nn/optim/gradients.h"

#include <algorithm>
#include <numeric>

#include "engine/kernels/fused.h"
#include "engine/nn/optim/landing.h"
#include "engine/nn/optim/run_beside.h"

namespace loom::nn {

namespace {

double squares_of(const Tensor& tensor, const char* name) {
  double sum = 0;
  const device::Cost cost{2.0 * static_cast<double>(tensor.numel()), tensor.nbytes()};
  run_beside(tensor, name, cost, [&] { sum = kernels::sum_of_squares(tensor.dtype(), tensor.numel(), tensor.raw()); });
  return sum;
}

// In every floating dtype, 0 and -0 are the values whose bits other than the sign are 0.
template <class Bits>
double zeros_among(const void* values, std::int64_t count) {
  const auto* bits = static_cast<const Bits*>(values);
  return static_cast<double>(std::count_if(bits, bits + count, [](Bits b) { return static_cast<Bits>(b << 1) == 0; }));
}

double zeros_of(const Tensor& grad) {
  double zeros = 0;
  const device::Cost cost{static_cast<double>(grad.numel()), grad.nbytes()};
  run_beside(grad, "zeros_in_grad", cost, [&] {
    switch (element_bytes(grad.dtype())) {
      case 2:
        zeros = zeros_among<std::uint16_t>(grad.raw(), grad.numel());
        break;
      case 4:
        zeros = zeros_among<std::uint32_t>(grad.raw(), grad.numel());
        break;
      default:
        zeros = zeros_among<std::uint64_t>(grad.raw(), grad.numel());
    }
  });
  return zeros;
}

}  // namespace

double gradient_zeros(const std::vector<Tensor>& parameters) {
  double zeros = 0;
  for (const Tensor& parameter : parameters) {
    const Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    wait_until_landed(grad);
    zeros += zeros_of(grad);
  }
  return zeros;
}

double sum_of_squares(const std::vector<Tensor>& parameters) {
  double sum = 0;
  for (const Tensor& parameter : parameters) sum += squares_of(parameter, "params_norm");
  return sum;
}

double gradient_sum_of_squares(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> grads;
  for (const Tensor& parameter : parameters) {
    if (Tensor grad = parameter.grad(); grad.defined()) grads.push_back(std::move(grad));
  }
  std::vector<double> squares(grads.size());
  for (const std::size_t i : landing_order(grads)) {
    const Tensor& grad = grads[i];
    wait_until_landed(grad);
    squares[i] = squares_of(grad, "grad_norm");
  }
  return std::accumulate(squares.begin(), squares.end(), 0.0);
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

void clip_gradients(const std::vector<Tensor>& parameters, double norm, double max_norm) {
  scale_gradients(parameters, std::min(1.0, max_norm / (norm + 1e-6)));
}

}  // namespace loom::nn
