// AdamWRule: AdamW's update of a group and the state it keeps. AdamW uses it for every group, Muon for the parameters
// that are not hidden matrices. Facts: adamw.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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
  // on the device, and makes eight passes over the parameters that it updates on the host, as torch does; without it
  // (torch: fused=True) there is one pass. The values are the same.
  bool foreach = false;
};

// AdamW's state of a parameter, in any place, and its names in checkpoints: torch's.
struct AdamWState {
  Tensor m;
  Tensor v;
  std::int64_t step = 0;

  static StateNames names() { return {{"exp_avg", "exp_avg_sq"}, {"step"}}; }
  ParameterState named(const ShardSpec& shard) const;
};
// The options that a checkpoint holds.
std::map<std::string, double> saved_options(const AdamWOptions& options);
void load_options(AdamWOptions& options, const std::map<std::string, double>& saved);

class AdamWRule {
 public:
  explicit AdamWRule(const AdamWOptions& options) : options_(options) {}

  void step(const ParameterGroup& group);

  // The overrides that Optimizer needs.
  StateNames state_names() const { return AdamWState::names(); }
  ParameterState state_of(const OptimizedParameter& parameter) const;
  ParameterState make_state(const OptimizedParameter& parameter, const ParameterState& numbers);
  void drop_state(const OptimizedParameter& parameter) { states_.erase(parameter.value.id()); }
  std::map<std::string, double> options() const { return saved_options(options_); }
  void set_options(const std::map<std::string, double>& options) { load_options(options_, options); }

 private:
  using State = AdamWState;
  void make_moments(const ParameterGroup& group);
  std::vector<Tensor> foreach_temporaries(const ParameterGroup& group) const;
  void update(const Tensor& parameter, const Tensor& grad, const ParameterGroup& group);

  AdamWOptions options_;
  std::unordered_map<const void*, State> states_;  // by Tensor::id() of the parameter
};

}  // namespace loom::nn
