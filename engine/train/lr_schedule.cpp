#include "engine/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace loom::train {
namespace {

// Falls from 1 to 0 while `ratio` goes from 0 to 1.
double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

// The share of max_lr - min_lr in the last part of WSD.
double wsd_share(WsdDecayStyle style, double ratio) {
  switch (style) {
    case WsdDecayStyle::kLinear:
      return 1.0 - ratio;
    case WsdDecayStyle::kCosine:
      return half_cosine(ratio);
    case WsdDecayStyle::kMinusSqrt:
      return 1.0 - std::sqrt(ratio);
    case WsdDecayStyle::kExponential:
      break;
  }
  return 2.0 * std::pow(0.5, ratio) - 1.0;
}

double share(const LrSchedule& s, double n) {
  if (s.style == LrDecayStyle::kWsd) {
    const auto begin = static_cast<double>(s.decay_steps - s.wsd_decay_steps);
    return n <= begin ? 1.0 : wsd_share(s.wsd_style, (n - begin) / static_cast<double>(s.wsd_decay_steps));
  }
  const double ratio = (n - s.warmup_steps) / (static_cast<double>(s.decay_steps) - s.warmup_steps);
  return s.style == LrDecayStyle::kLinear ? 1.0 - ratio : half_cosine(ratio);
}

}  // namespace

template <>
const StyleWords<LrDecayStyle>& style_words<LrDecayStyle>() {
  static const StyleWords<LrDecayStyle> words = {{"constant", LrDecayStyle::kConstant},
                                                 {"linear", LrDecayStyle::kLinear},
                                                 {"cosine", LrDecayStyle::kCosine},
                                                 {"inverse-square-root", LrDecayStyle::kInverseSquareRoot},
                                                 {"WSD", LrDecayStyle::kWsd}};
  return words;
}

template <>
const StyleWords<WsdDecayStyle>& style_words<WsdDecayStyle>() {
  static const StyleWords<WsdDecayStyle> words = {{"exponential", WsdDecayStyle::kExponential},
                                                  {"linear", WsdDecayStyle::kLinear},
                                                  {"cosine", WsdDecayStyle::kCosine},
                                                  {"minus_sqrt", WsdDecayStyle::kMinusSqrt}};
  return words;
}

template <>
const StyleWords<WeightDecayIncrStyle>& style_words<WeightDecayIncrStyle>() {
  static const StyleWords<WeightDecayIncrStyle> words = {{"constant", WeightDecayIncrStyle::kConstant},
                                                         {"linear", WeightDecayIncrStyle::kLinear},
                                                         {"cosine", WeightDecayIncrStyle::kCosine}};
  return words;
}

double LrSchedule::at(std::int64_t steps_done) const {
  const auto n = static_cast<double>(steps_done);
  if (warmup_steps > 0 && n <= warmup_steps) return init_lr + (max_lr - init_lr) * n / warmup_steps;
  if (style == LrDecayStyle::kConstant) return max_lr;
  if (steps_done > decay_steps) return min_lr;
  if (style == LrDecayStyle::kInverseSquareRoot) {
    return std::max(min_lr, max_lr * std::sqrt(std::max(warmup_steps, 1.0)) / std::sqrt(std::max(n, 1.0)));
  }
  return min_lr + share(*this, n) * (max_lr - min_lr);
}

double WeightDecaySchedule::at(std::int64_t steps_done) const {
  if (steps_done > incr_steps || style == WeightDecayIncrStyle::kConstant) return end;
  const double ratio = static_cast<double>(steps_done) / static_cast<double>(incr_steps);
  const double share = style == WeightDecayIncrStyle::kLinear ? ratio : half_cosine(1.0 - ratio);
  return start + share * (end - start);
}

}  // namespace loom::train
