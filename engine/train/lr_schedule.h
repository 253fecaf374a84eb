// The schedules of Megatron-LM: the learning rate and the weight decay of every update.
//
// With n = the steps trained before this update (0 for the first), W = warmup_steps, D = decay_steps,
// A = wsd_decay_steps, the first line that applies is used:
//   n <= W, W > 0           init_lr + (max_lr - init_lr) * n / W      so the first update of a warmup has init_lr
//   constant                max_lr
//   n > D                   min_lr
//   inverse-square-root     max(min_lr, max_lr * sqrt(max(W, 1)) / sqrt(max(n, 1)))
//   linear                  min_lr + (max_lr - min_lr) * (1 - r), with r = (n - W) / (D - W)
//   cosine                  min_lr + (max_lr - min_lr) * (cos(pi * r) + 1) / 2, with the same r
//   WSD, n <= D - A         max_lr
//   WSD                     min_lr + (max_lr - min_lr) * c, with r = (n - (D - A)) / A and
//                           c = 1 - r                   of linear
//                           c = (cos(pi * r) + 1) / 2   of cosine
//                           c = 2 * 0.5^r - 1           of exponential
//                           c = 1 - sqrt(r)             of minus_sqrt
//
// The weight decay, with I = incr_steps and r = n / I:
//   n > I                   end
//   constant                end
//   linear                  start + (end - start) * r
//   cosine                  start + (end - start) * (cos(pi * (1 - r)) + 1) / 2
//
// Units    a step here is whatever n counts. A run counts samples, as Megatron does (optimizer_schedule.h).
// Source   NVIDIA/Megatron-LM, megatron/core/optimizer_param_scheduler.py, get_lr and get_wd.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loom::train {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };
enum class WeightDecayIncrStyle { kConstant, kLinear, kCosine };

// Megatron's word for each style, in its order.
template <class Style>
using StyleWords = std::vector<std::pair<std::string, Style>>;
template <class Style>
const StyleWords<Style>& style_words();
template <>
const StyleWords<LrDecayStyle>& style_words<LrDecayStyle>();
template <>
const StyleWords<WsdDecayStyle>& style_words<WsdDecayStyle>();
template <>
const StyleWords<WeightDecayIncrStyle>& style_words<WeightDecayIncrStyle>();

template <class Style>
std::string_view word_of(Style style) {
  for (const auto& [word, meaning] : style_words<Style>()) {
    if (meaning == style) return word;
  }
  return "another";
}

struct LrSchedule {
  double max_lr = 0.0;
  double min_lr = 0.0;  // from 0 to max_lr
  LrDecayStyle style = LrDecayStyle::kLinear;
  double warmup_steps = 0;       // less than decay_steps; may be fractional if given as a share of them
  std::int64_t decay_steps = 1;  // counted from the start of training, warmup included
  double init_lr = 0.0;          // at most max_lr
  WsdDecayStyle wsd_style = WsdDecayStyle::kExponential;
  std::int64_t wsd_decay_steps = 0;  // the last of decay_steps; with WSD, at least 1

  // The rate of the update that follows `steps_done` trained steps.
  double at(std::int64_t steps_done) const;

  bool operator==(const LrSchedule&) const = default;
};

struct WeightDecaySchedule {
  double start = 0.0;  // with kConstant equal to `end`
  double end = 0.0;
  WeightDecayIncrStyle style = WeightDecayIncrStyle::kConstant;
  std::int64_t incr_steps = 1;

  double at(std::int64_t steps_done) const;

  bool operator==(const WeightDecaySchedule&) const = default;
};

}  // namespace loom::train
