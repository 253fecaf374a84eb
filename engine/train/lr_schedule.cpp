#include "engine/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace loom::train {

double LrSchedule::at(std::int64_t steps_done) const {
  const auto n = static_cast<double>(steps_done);
  const auto warmup = static_cast<double>(warmup_steps);
  if (warmup_steps > 0 && steps_done <= warmup_steps) return max_lr * n / warmup;
  if (style == LrDecayStyle::kConstant) return max_lr;
  if (steps_done > decay_steps) return min_lr;
  if (style == LrDecayStyle::kInverseSquareRoot) {
    return std::max(min_lr, max_lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
  }
  const double ratio = (n - warmup) / static_cast<double>(decay_steps - warmup_steps);
  const double share = style == LrDecayStyle::kLinear ? 1.0 - ratio : 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0);
  return min_lr + share * (max_lr - min_lr);
}

}  // namespace loom::train
