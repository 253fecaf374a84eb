// Figures of a step that need a flag: --log-num-zeros-in-grad, --log-norms-by-layer. Observers, like
// params_norm.h.
//
// When     gradients when the optimizer's phase begins: before clipping, without the loss scale. Parameters after
//          the update.
// Layer    "model.layers.3": a parameter's path up to the first number; without a number, the module that
//          holds it ("model.embed_tokens").
// Threads  the rank's host thread; both are collective, so every rank has them.
// Source   Megatron-LM, count_zeros_fp32.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "engine/train/step/step_metrics.h"
#include "engine/train/step/step_observer.h"
#include "sharding/fully_shard.h"

namespace loom::train {

// The layer of a parameter.
std::string layer_of(const std::string& path);

class ZerosInGrad final : public StepObserver {
 public:
  explicit ZerosInGrad(nn::Module& module) : module_(module) {}

  void begin_phase(std::string_view phase) override;

  double of_step() const { return zeros_; }

 private:
  nn::Module& module_;
  double zeros_ = 0;
};

class NormsByLayer final : public StepObserver {
 public:
  // `loss_scale`: the scale of this step's gradients.
  NormsByLayer(nn::Module& module, std::function<double()> loss_scale);

  void begin_phase(std::string_view phase) override;
  void end_step(std::int64_t step) override;

  const std::vector<LayerNorms>& of_step() const { return norms_; }

 private:
  nn::Module& module_;
  const std::function<double()> loss_scale_;
  std::vector<LayerNorms> norms_;  // in the order of the model
  sharding::ParameterParts parts_;
};

}  // namespace loom::train
