// ParamsNorm: the L2 norm of a model's parameters after each step, as --log-params-norm shows it.
//
// Which    every parameter once, however it is sharded, of the part that fully_shard() was applied to; all parameters
//          of a model that is not sharded. The same bits on every rank.
// Threads  the rank's host thread; end_step() is collective, so every rank has one.
// Source   Megatron-LM, megatron/training/utils.py, calc_params_l2_norm.
#pragma once

#include "engine/nn/module.h"
#include "engine/train/step/step_observer.h"

namespace loom::train {

class ParamsNorm final : public StepObserver {
 public:
  // `is_sharded`: whether fully_shard() was applied to the module.
  ParamsNorm(nn::Module& module, bool is_sharded) : module_(module), is_sharded_(is_sharded) {}

  void end_step(std::int64_t step) override;

  double after_step() const { return norm_; }

 private:
  nn::Module& module_;
  const bool is_sharded_;
  double norm_ = 0;
};

}  // namespace loom::train
