// AdamW, as torch.optim.AdamW: decoupled weight decay, bias correction, moments in the dtype of their parameter: fp32,
// fp64, or bf16, computed in fp32 and rounded once, as torch does with fused=True.
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

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/optim/adamw_rule.h"

namespace loom::nn {

class AdamW final : public Optimizer {
 public:
  // Groups without a learning rate or weight decay get the values of `options`.
  AdamW(ParameterGroups groups, const AdamWOptions& options);
  // One group of the parameters that require grad. Without paths: its state can be neither saved nor loaded.
  AdamW(const std::vector<Tensor>& parameters, const AdamWOptions& options);

  std::string_view name() const override { return "AdamW"; }
  void step() override;

 protected:
  StateNames state_names(const ParameterGroup&) const override { return rule_.state_names(); }
  ParameterState state_of(const OptimizedParameter& parameter) const override { return rule_.state_of(parameter); }
  ParameterState make_state(const ParameterGroup&, const OptimizedParameter& parameter,
                            const ParameterState& numbers) override {
    return rule_.make_state(parameter, numbers);
  }
  void drop_state(const OptimizedParameter& parameter) override { rule_.drop_state(parameter); }
  std::map<std::string, double> options(const ParameterGroup&) const override { return rule_.options(); }
  void set_options(const ParameterGroup&, const std::map<std::string, double>& options) override {
    rule_.set_options(options);
  }

 private:
  AdamWRule rule_;
};

}  // namespace loom::nn
