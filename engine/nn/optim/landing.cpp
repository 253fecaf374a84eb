#include "engine/nn/optim/landing.h"

#include <algorithm>
#include <utility>

namespace loom::nn {
namespace {

std::int64_t number_of(const Tensor& gradient) {
  const auto landing = gradient.storage()->attachment<Landing>();
  return landing == nullptr ? -1 : landing->number;
}

}  // namespace

std::vector<std::size_t> landing_order(std::span<const Tensor> gradients) {
  std::vector<std::pair<std::int64_t, std::size_t>> numbers;
  for (const Tensor& gradient : gradients) numbers.emplace_back(number_of(gradient), numbers.size());
  std::ranges::sort(numbers);
  std::vector<std::size_t> order;
  for (const auto& [number, index] : numbers) order.push_back(index);
  return order;
}

std::vector<const OptimizedParameter*> in_landing_order(const ParameterGroup& group) {
  std::vector<const OptimizedParameter*> parameters;
  std::vector<Tensor> gradients;
  for (const OptimizedParameter& parameter : group.parameters) {
    const Tensor gradient = parameter.value.grad();
    if (!gradient.defined()) continue;
    parameters.push_back(&parameter);
    gradients.push_back(gradient);
  }
  std::vector<const OptimizedParameter*> ordered;
  for (const std::size_t i : landing_order(gradients)) ordered.push_back(parameters[i]);
  return ordered;
}

void wait_until_landed(const Tensor& gradient) {
  if (gradient.storage()->attachment<Landing>() == nullptr) return;
  gradient.storage()->wait_ready();
  gradient.storage()->set_ready({});
}

}  // namespace loom::nn
