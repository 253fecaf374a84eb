// LrSchedule: the learning rate of a step, as Megatron-LM's OptimizerParamScheduler has it.
//
// With n = optimizer steps done before this one (0 for the first), W = warmup_steps, D = decay_steps, the first line
// that applies counts:
//   n <= W, W > 0           max_lr * n / W                            so the first step of a warmup has rate 0
//   constant                max_lr
//   n > D                   min_lr
//   inverse-square-root     max(min_lr, max_lr * sqrt(max(W, 1)) / sqrt(max(n, 1)))
//   linear                  min_lr + (max_lr - min_lr) * (1 - r), with r = (n - W) / (D - W)
//   cosine                  min_lr + (max_lr - min_lr) * (cos(pi * r) + 1) / 2, with the same r
//
// Source   NVIDIA/Megatron-LM, megatron/core/optimizer_param_scheduler.py, get_lr (init_lr 0).
#pragma once

#include <cstdint>

namespace loom::train {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot };

struct LrSchedule {
  double max_lr = 0.0;
  double min_lr = 0.0;  // from 0 to max_lr
  LrDecayStyle style = LrDecayStyle::kLinear;
  std::int64_t warmup_steps = 0;  // less than decay_steps
  std::int64_t decay_steps = 1;   // counted from the start of training, warmup included

  // The rate of the step that follows `steps_done` steps.
  double at(std::int64_t steps_done) const;
};

}  // namespace loom::train
