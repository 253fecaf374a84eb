// AdamW, as torch.optim.AdamW: decoupled weight decay, bias correction, fp32 moments (fp64 for fp64 parameters).
//
// Parameters  are leaves with bytes, usually this rank's shards: make the optimizer after sharding. Parameters without
//             gradient are skipped and keep their step count. Empty shards take part and do nothing.
// State       "exp_avg", "exp_avg_sq" (tensors), "step" (a number; a tensor of one element in torch).
// Memory      two moments per parameter, category optimizer_state, made beside it (on its device, or on the host with
//             the same pinning) at the first step that has a gradient, or when state is loaded; with foreach also the
//             temporaries of a step, one group after another.
// Where       on the device for tensors of the device; on the CPU for tensors of the host. Reading a gradient waits
//             until it has landed there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/nn/optim/optimizer.h"

namespace loom::nn {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  // torch.optim.AdamW(foreach=True): a step holds one temporary as large as all parameters of a group that it updates
  // on the device. The values are the same.
  bool foreach = false;
};

class AdamW final : public Optimizer {
 public:
  // Groups that say no learning rate or weight decay get those of `options`.
  AdamW(ParameterGroups groups, const AdamWOptions& options);
  // One group of the parameters that require grad. Without paths: its state can be neither saved nor loaded.
  AdamW(const std::vector<Tensor>& parameters, const AdamWOptions& options);

  std::string_view name() const override { return "AdamW"; }
  void step() override;

 protected:
  std::vector<std::string> tensor_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::vector<std::string> number_names() const override { return {"step"}; }
  ParameterState state_of(const OptimizedParameter& parameter) const override;
  ParameterState make_state(const OptimizedParameter& parameter, const ParameterState& numbers) override;
  void drop_state(const OptimizedParameter& parameter) override { states_.erase(parameter.value.id()); }
  std::map<std::string, double> options() const override;
  void set_options(const std::map<std::string, double>& options) override;

 private:
  struct State {
    Tensor m;
    Tensor v;
    std::int64_t step = 0;
  };
  void make_moments(const ParameterGroup& group);
  std::vector<Tensor> foreach_temporaries(const ParameterGroup& group) const;
  void update(const Tensor& parameter, const Tensor& grad, const ParameterGroup& group);

  AdamWOptions options_;
  std::unordered_map<const void*, State> states_;  // by Tensor::id() of the parameter
};

}  // namespace loom::nn
