// SGD, as torch.optim.SGD: momentum with dampening, Nesterov's form, weight decay added to the gradient.
//
// Parameters  as AdamW's.
// State       "momentum_buffer"; none without momentum. In the dtype of the parameter, made at the first step that
//             has a gradient.
// Where       on the device for tensors of the device; on the CPU for tensors of the host.
// Errors      ConfigError when it is made: Nesterov's form without momentum or with dampening.
// Source      torch/optim/sgd.py.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "engine/nn/optim/optimizer.h"

namespace loom::nn {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;  // of the gradient on its way into the momentum, but for the first
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum, and no dampening
};

class Sgd final : public Optimizer {
 public:
  // Groups without a learning rate or weight decay get the values of `options`.
  Sgd(ParameterGroups groups, const SgdOptions& options);

  std::string_view name() const override { return "SGD"; }
  void step() override;

 protected:
  StateNames state_names(const ParameterGroup&) const override;
  ParameterState state_of(const OptimizedParameter& parameter) const override;
  ParameterState make_state(const ParameterGroup& group, const OptimizedParameter& parameter,
                            const ParameterState& numbers) override;
  void drop_state(const OptimizedParameter& parameter) override { buffers_.erase(parameter.value.id()); }
  std::map<std::string, double> options(const ParameterGroup&) const override;
  void set_options(const ParameterGroup&, const std::map<std::string, double>& options) override;

 private:
  void update(const Tensor& parameter, const Tensor& grad, const ParameterGroup& group);

  SgdOptions options_;
  std::unordered_map<const void*, Tensor> buffers_;  // by Tensor::id() of the parameter
};

}  // namespace loom::nn
