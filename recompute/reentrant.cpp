#include "recompute/reentrant.h"

#include <algorithm>

#include "engine/core/rng_state.h"
#include "engine/tensor/autograd.h"
#include "recompute/kept_call.h"

namespace loom::recompute {
namespace {

bool any_requires_grad(const std::vector<Tensor>& tensors) {
  return std::ranges::any_of(tensors, [](const Tensor& tensor) { return tensor.requires_grad(); });
}

// The tensors of a result that can carry a gradient, in order.
std::vector<Tensor> floating_tensors(const nn::Value& result) {
  std::vector<Tensor> tensors;
  result.collect_tensors(tensors);
  std::erase_if(tensors, [](const Tensor& tensor) { return !is_floating(tensor.dtype()); });
  return tensors;
}

// The results of the second forward that are part of its graph, with the gradients that came.
std::vector<autograd::Root> roots_of(const std::string& path, const nn::Value& result, const autograd::Grads& grads) {
  const std::vector<Tensor> outputs = floating_tensors(result);
  if (grads.size() > outputs.size()) {
    raise<RecomputeError>(
        "recompute of '{}': forward returned at least {} floating tensors, and {} when it ran again; it must do "
        "the same both times",
        path, grads.size(), outputs.size());
  }
  if (!any_requires_grad(outputs)) {
    raise<RecomputeError>(
        "recompute of '{}': none of the tensors it returns requires a gradient, so there is nothing to "
        "recompute; leave it out of recompute_modules",
        path);
  }
  std::vector<autograd::Root> roots;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
    if (grads[i].shape() != outputs[i].shape() || grads[i].dtype() != outputs[i].dtype()) {
      raise<RecomputeError>(
          "recompute of '{}': output {} was {} {} in forward and is {} {} when it runs again; forward must do the "
          "same both times",
          path, i, name(grads[i].dtype()), to_string(grads[i].shape()), name(outputs[i].dtype()),
          to_string(outputs[i].shape()));
    }
    roots.push_back({outputs[i], grads[i]});
  }
  return roots;
}

// Runs forward again from `tensors` and goes backward through it; returns their gradients.
autograd::Grads run_again(const std::string& path, const KeptCall& call, const nn::Module::Run& inner,
                          autograd::Saved tensors, const autograd::Grads& grads) {
  const std::vector<Tensor> leaves = call.leaves(tensors);
  {
    const autograd::GradMode recorded(true);
    nn::Value result;
    {
      const RngReplay replay(call.rng());
      result = inner(call.filled(leaves));
    }
    if (const auto roots = roots_of(path, result, grads); !roots.empty()) autograd::backward(roots);
  }
  autograd::Grads inputs;
  for (const Tensor& leaf : leaves) {
    inputs.push_back(leaf.grad());
    if (inputs.back().defined()) inputs.back().storage()->recategorize(device::MemCategory::kActivation);
  }
  return inputs;
}

void refuse_lost_gradients(const nn::Module& module, const std::string& path) {
  for (const auto& [name, slot] : module.named_slots()) {
    if (!slot->value.requires_grad()) continue;
    config_error(
        "recompute of '{}' with use_reentrant: true: none of the tensors it is called with requires a gradient, so its "
        "parameter '{}' would get none; use use_reentrant: false",
        path, nn::join_path(path, name));
  }
}

}  // namespace

nn::Value run_reentrant(const nn::Module& module, const CheckpointOptions& options, const nn::Module::Run& inner,
                        nn::Args args) {
  std::vector<Tensor> tensors;
  auto call = std::make_shared<const KeptCall>(args, tensors);
  if (!any_requires_grad(tensors)) {
    refuse_lost_gradients(module, options.path);
    return inner(std::move(args));
  }
  nn::Value result;
  {
    const autograd::GradDeferred deferred;
    result = inner(std::move(args));
  }
  // New tensors: a module may return one of its inputs, or a parameter.
  result =
      result.map_tensors([](const Tensor& tensor) { return is_floating(tensor.dtype()) ? tensor.detach() : tensor; });
  autograd::record(
      "recompute", tensors, tensors, floating_tensors(result),
      [call, inner, path = options.path](autograd::Saved saved, const autograd::Grads& grads, const autograd::Needs&) {
        return run_again(path, *call, inner, saved, grads);
      });
  return result;
}

}  // namespace loom::recompute
