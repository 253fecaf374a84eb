#include "engine/train/optimizer_schedule.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::train {
namespace {

constexpr double kMostSteps = 9007199254740992.0;  // 2^53: whole numbers up to here are doubles

bool in_samples(const ScheduleOptions& options) { return options.train_samples > 0; }

double number(const NamedValues& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) config_error("the saved schedule has no '{}'; it is not one of Megatron's", name);
  const double* value = std::get_if<double>(&found->second);
  if (value == nullptr) config_error("the saved schedule's '{}' is a text; it is a number", name);
  if (!std::isfinite(*value) || *value < 0) {
    config_error("the saved schedule's '{}' is {}; it is a number of at least 0", name, *value);
  }
  return *value;
}

std::int64_t steps(const NamedValues& values, const std::string& name, std::int64_t least) {
  const double value = number(values, name);
  if (value != std::floor(value) || value > kMostSteps || value < static_cast<double>(least)) {
    config_error("the saved schedule's '{}' is {}; it is a whole number from {} to 2^53", name, value, least);
  }
  return static_cast<std::int64_t>(value);
}

template <class Style>
std::string style(const NamedValues& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) config_error("the saved schedule has no '{}'; it is not one of Megatron's", name);
  const std::string* text = std::get_if<std::string>(&found->second);
  if (text == nullptr) config_error("the saved schedule's '{}' is a number; it is a text", name);
  std::vector<std::string> words;
  for (const auto& [word, meaning] : style_words<Style>()) words.push_back(word);
  if (std::ranges::find(words, *text) == words.end()) {
    config_error("the saved schedule's '{}' is {}; it is one of {}", name, shown_text(*text), fmt::join(words, ", "));
  }
  return *text;
}

template <class Style>
Style meaning_of(std::string_view word) {
  for (const auto& [known, meaning] : style_words<Style>()) {
    if (known == word) return meaning;
  }
  config_error("'{}' is no style of a schedule", word);
}

void check_values(const ScheduleState& s) {
  if (s.min_lr > s.max_lr) {
    config_error("the saved schedule's 'min_lr' is {}, above its 'max_lr' {}", s.min_lr, s.max_lr);
  }
  if (s.init_lr.value_or(0) > s.max_lr) {
    config_error("the saved schedule's 'init_lr' is {}, above its 'max_lr' {}", *s.init_lr, s.max_lr);
  }
  if (s.lr_warmup_steps >= static_cast<double>(s.lr_decay_steps)) {
    config_error("the saved schedule's 'lr_warmup_steps' is {}, not below its 'lr_decay_steps' {}", s.lr_warmup_steps,
                 s.lr_decay_steps);
  }
  if (s.wsd_decay_steps.value_or(1) > s.lr_decay_steps) {
    config_error("the saved schedule's 'wsd_decay_steps' is {}, above its 'lr_decay_steps' {}", *s.wsd_decay_steps,
                 s.lr_decay_steps);
  }
}

// Steps of a schedule as the user counts them.
std::string counted(double samples, const ScheduleOptions& options) {
  const auto batch = static_cast<double>(std::max(1, options.global_batch_size));
  if (in_samples(options) || std::fmod(samples, batch) != 0) return fmt::format("{} samples", samples);
  return fmt::format("{} iterations of {} samples", samples / batch, batch);
}

// The differences between the schedules of a checkpoint and of a command line.
class Differences {
 public:
  Differences(const ScheduleState& saved, const ScheduleState& given, const ScheduleOptions& options)
      : options_(options) {
    const bool warms_up = saved.lr_warmup_steps > 0 || given.lr_warmup_steps > 0;
    value("--lr", saved.max_lr, given.max_lr);
    value("--lr-decay-style", saved.lr_decay_style, given.lr_decay_style);
    count(options.lr_warmup_fraction ? "--lr-warmup-fraction" : flag("--lr-warmup"), saved.lr_warmup_steps,
          given.lr_warmup_steps);
    if (warms_up && saved.init_lr) value("--lr-warmup-init", *saved.init_lr, given.init_lr.value_or(0));
    if (saved.lr_decay_style != "constant" || given.lr_decay_style != "constant") {
      value("--min-lr", saved.min_lr, given.min_lr);
      count(flag("--lr-decay"), static_cast<double>(saved.lr_decay_steps), static_cast<double>(given.lr_decay_steps));
    }
    if (saved.wsd_decay_steps && given.wsd_decay_steps) {
      count(flag("--lr-wsd-decay"), static_cast<double>(*saved.wsd_decay_steps),
            static_cast<double>(*given.wsd_decay_steps));
    }
    if (saved.lr_wsd_decay_style && given.lr_wsd_decay_style) {
      value("--lr-wsd-decay-style", *saved.lr_wsd_decay_style, *given.lr_wsd_decay_style);
    }
    add_weight_decay(saved, given);
  }

  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::string flag(const char* stem) const {
    return fmt::format("{}-{}", stem, in_samples(options_) ? "samples" : "iters");
  }

  template <class T>
  void value(std::string_view name, const T& saved, const T& given) {
    if (saved != given) texts_.push_back(fmt::format("{} is {} in the checkpoint and {} here", name, saved, given));
  }
  void count(std::string_view name, double saved, double given) {
    if (saved == given) return;
    value(name, counted(saved, options_), counted(given, options_));
  }

  void add_weight_decay(const ScheduleState& saved, const ScheduleState& given) {
    value("--weight-decay-incr-style", saved.wd_incr_style, given.wd_incr_style);
    if (given.wd_incr_style == "constant") return value("--weight-decay", saved.end_wd, given.end_wd);
    value("--start-weight-decay", saved.start_wd, given.start_wd);
    value("--end-weight-decay", saved.end_wd, given.end_wd);
    count(flag("--train"), static_cast<double>(saved.wd_incr_steps), static_cast<double>(given.wd_incr_steps));
  }

  const ScheduleOptions& options_;
  std::vector<std::string> texts_;
};

// What the checkpoint does not know is the command line's.
OptimizerSchedule schedule_of(const ScheduleState& s, const OptimizerSchedule& given) {
  return {
      .lr = {.max_lr = s.max_lr,
             .min_lr = s.min_lr,
             .style = meaning_of<LrDecayStyle>(s.lr_decay_style),
             .warmup_steps = s.lr_warmup_steps,
             .decay_steps = s.lr_decay_steps,
             .init_lr = s.init_lr.value_or(given.lr.init_lr),
             .wsd_style = s.lr_wsd_decay_style ? meaning_of<WsdDecayStyle>(*s.lr_wsd_decay_style) : given.lr.wsd_style,
             .wsd_decay_steps = s.wsd_decay_steps.value_or(given.lr.wsd_decay_steps)},
      .weight_decay = {.start = s.start_wd,
                       .end = s.end_wd,
                       .style = meaning_of<WeightDecayIncrStyle>(s.wd_incr_style),
                       .incr_steps = s.wd_incr_steps}};
}

OptimizerSchedule of_the_checkpoint(const ScheduleState& saved, const ScheduleOptions& options) {
  const OptimizerSchedule schedule = schedule_of(saved, schedule_of(options));
  const LrSchedule& lr = schedule.lr;
  if (lr.style == LrDecayStyle::kWsd && (lr.wsd_decay_steps < 1 || lr.wsd_decay_steps > lr.decay_steps)) {
    config_error(
        "--use-checkpoint-opt_param-scheduler: the checkpoint's lr_decay_style is WSD, and it does not say how long "
        "its "
        "last part is; give --lr-decay-style WSD with {}, at most {}",
        in_samples(options) ? "--lr-wsd-decay-samples" : "--lr-wsd-decay-iters",
        counted(static_cast<double>(lr.decay_steps), options));
  }
  return schedule;
}

}  // namespace

OptimizerSchedule schedule_of(const ScheduleOptions& o) {
  const bool samples = in_samples(o);
  const std::int64_t batch = o.global_batch_size;
  const std::int64_t decay = samples ? o.lr_decay_samples : o.lr_decay_iters * batch;
  const auto warmup = static_cast<double>(samples ? o.lr_warmup_samples : o.lr_warmup_iters * batch);
  const bool constant = o.weight_decay_incr_style == WeightDecayIncrStyle::kConstant;
  return {.lr = {.max_lr = o.lr,
                 .min_lr = o.min_lr,
                 .style = o.lr_decay_style,
                 .warmup_steps = o.lr_warmup_fraction ? *o.lr_warmup_fraction * static_cast<double>(decay) : warmup,
                 .decay_steps = decay,
                 .init_lr = o.lr_warmup_init,
                 .wsd_style = o.lr_wsd_decay_style,
                 .wsd_decay_steps = samples ? o.lr_wsd_decay_samples : o.lr_wsd_decay_iters * batch},
          .weight_decay = {.start = constant ? o.weight_decay : o.start_weight_decay.value_or(o.weight_decay),
                           .end = constant ? o.weight_decay : o.end_weight_decay.value_or(o.weight_decay),
                           .style = o.weight_decay_incr_style,
                           .incr_steps = samples ? o.train_samples : o.train_iters * batch}};
}

ScheduleState state_of(const OptimizerSchedule& schedule, std::int64_t num_steps) {
  const auto& [lr, weight_decay] = schedule;
  ScheduleState state{.max_lr = lr.max_lr,
                      .min_lr = lr.min_lr,
                      .lr_warmup_steps = lr.warmup_steps,
                      .num_steps = num_steps,
                      .lr_decay_style = std::string(word_of(lr.style)),
                      .lr_decay_steps = lr.decay_steps,
                      .start_wd = weight_decay.start,
                      .end_wd = weight_decay.end,
                      .wd_incr_style = std::string(word_of(weight_decay.style)),
                      .wd_incr_steps = weight_decay.incr_steps,
                      .init_lr = lr.init_lr};
  if (lr.style != LrDecayStyle::kWsd) return state;
  state.wsd_decay_steps = lr.wsd_decay_steps;
  state.lr_wsd_decay_style = std::string(word_of(lr.wsd_style));
  return state;
}

NamedValues named_values(const ScheduleState& s) {
  NamedValues values = {{"max_lr", s.max_lr},
                        {"min_lr", s.min_lr},
                        {"lr_warmup_steps", s.lr_warmup_steps},
                        {"num_steps", static_cast<double>(s.num_steps)},
                        {"lr_decay_style", s.lr_decay_style},
                        {"lr_decay_steps", static_cast<double>(s.lr_decay_steps)},
                        {"start_wd", s.start_wd},
                        {"end_wd", s.end_wd},
                        {"wd_incr_style", s.wd_incr_style},
                        {"wd_incr_steps", static_cast<double>(s.wd_incr_steps)}};
  if (s.init_lr) values.emplace("init_lr", *s.init_lr);
  if (s.wsd_decay_steps) values.emplace("wsd_decay_steps", static_cast<double>(*s.wsd_decay_steps));
  if (s.lr_wsd_decay_style) values.emplace("lr_wsd_decay_style", *s.lr_wsd_decay_style);
  return values;
}

ScheduleState schedule_state(const NamedValues& values) {
  ScheduleState state{.max_lr = number(values, "max_lr"),
                      .min_lr = number(values, "min_lr"),
                      .lr_warmup_steps = number(values, "lr_warmup_steps"),
                      .num_steps = steps(values, "num_steps", 0),
                      .lr_decay_style = style<LrDecayStyle>(values, "lr_decay_style"),
                      .lr_decay_steps = steps(values, "lr_decay_steps", 1),
                      .start_wd = number(values, "start_wd"),
                      .end_wd = number(values, "end_wd"),
                      .wd_incr_style = style<WeightDecayIncrStyle>(values, "wd_incr_style"),
                      .wd_incr_steps = steps(values, "wd_incr_steps", 1)};
  if (values.contains("init_lr")) state.init_lr = number(values, "init_lr");
  if (values.contains("wsd_decay_steps")) state.wsd_decay_steps = steps(values, "wsd_decay_steps", 1);
  if (values.contains("lr_wsd_decay_style")) {
    state.lr_wsd_decay_style = style<WsdDecayStyle>(values, "lr_wsd_decay_style");
  }
  check_values(state);
  return state;
}

OptimizerSchedule continued_schedule(const ScheduleState& saved, const ScheduleOptions& options) {
  if (options.use_checkpoint_opt_param_scheduler) return of_the_checkpoint(saved, options);
  const OptimizerSchedule given = schedule_of(options);
  if (options.override_opt_param_scheduler) return given;
  const Differences differences(saved, state_of(given, saved.num_steps), options);
  if (differences.texts().empty()) return given;
  config_error(
      "the schedule differs from the checkpoint: {}; give the checkpoint's values, or add "
      "--override-opt_param-scheduler to go on with the command line's or --use-checkpoint-opt_param-scheduler to go "
      "on "
      "with the checkpoint's",
      fmt::join(differences.texts(), "; "));
}

}  // namespace loom::train
