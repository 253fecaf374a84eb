#include "engine/cli/schedule_rules.h"

#include <algorithm>

#include "engine/cli/flags.h"
#include "engine/core/error.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kMostSamples = std::int64_t{1} << 53;  // whole numbers up to here are doubles

// What counts in samples with --train-samples, and in iterations without.
constexpr std::string_view kLengths[] = {"--lr-decay", "--lr-warmup", "--lr-wsd-decay"};

bool in_samples(const ProgramArguments& a) { return a.train_samples > 0; }

void check_unit(const Command& app, const ProgramArguments& a) {
  if (in_samples(a) && given(app, "--train-iters")) {
    config_error("--train-iters and --train-samples are both given; keep one");
  }
  for (const std::string_view length : kLengths) {
    const std::string wrong = fmt::format("{}-{}", length, in_samples(a) ? "iters" : "samples");
    if (!given(app, wrong)) continue;
    if (in_samples(a)) {
      config_error("{} is given, but --train-samples counts the run in samples; write {}-samples N", wrong, length);
    }
    config_error("{} is given, but the run is counted in iterations; write {}-iters N, or --train-samples N", wrong,
                 length);
  }
}

void settle_length(const Command& app, ProgramArguments& a) {
  if (!in_samples(a)) {
    if (!given(app, "--lr-decay-iters")) a.lr_decay_iters = a.train_iters;
    return;
  }
  check_limit("--train-samples", a.train_samples, kMostSamples);
  check_limit("--lr-decay-samples", a.lr_decay_samples, kMostSamples);
  a.train_iters = a.train_samples / a.global_batch_size;
  if (a.train_iters == 0) {
    config_error("--train-samples is {}, less than one --global-batch-size of {}; use at least {}", a.train_samples,
                 a.global_batch_size, a.global_batch_size);
  }
  if (a.train_iters > kMostSteps) {
    config_error("--train-samples is {}, which is {} steps of --global-batch-size {}; use at most {} steps",
                 a.train_samples, a.train_iters, a.global_batch_size, kMostSteps);
  }
  if (!given(app, "--lr-decay-samples")) a.lr_decay_samples = a.train_samples;
}

void check_warmup(ProgramArguments& a) {
  const std::string_view unit = in_samples(a) ? "samples" : "iters";
  const std::int64_t warmup = in_samples(a) ? a.lr_warmup_samples : a.lr_warmup_iters;
  const std::int64_t length = in_samples(a) ? a.train_samples : a.train_iters;
  const std::int64_t decay = in_samples(a) ? a.lr_decay_samples : a.lr_decay_iters;
  const std::int64_t limit = std::min(length, decay);
  if (a.lr_warmup_fraction && warmup > 0) {
    config_error("--lr-warmup-fraction and --lr-warmup-{} are both given; keep one", unit);
  }
  if (warmup >= limit) {
    config_error("--lr-warmup-{} is {}, but --{}-{} is {}; use less than {}", unit, warmup,
                 limit == length ? "train" : "lr-decay", unit, limit, limit);
  }
  if (a.lr_warmup_init > a.lr) {
    config_error("--lr-warmup-init is {}, above --lr {}; use at most --lr", a.lr_warmup_init, a.lr);
  }
  if (a.lr_warmup_init > 0 && warmup == 0 && a.lr_warmup_fraction.value_or(0) == 0) {
    a.without_effect.push_back(fmt::format("--lr-warmup-init {}", a.lr_warmup_init));
  }
}

void check_wsd(const Command& app, const ProgramArguments& a) {
  const std::string flag = fmt::format("--lr-wsd-decay-{}", in_samples(a) ? "samples" : "iters");
  if (a.lr_decay_style != train::LrDecayStyle::kWsd) {
    for (const std::string& name : {flag, std::string("--lr-wsd-decay-style")}) {
      if (!given(app, name)) continue;
      config_error("{} is given, but --lr-decay-style is {}; write --lr-decay-style WSD, or remove it", name,
                   train::word_of(a.lr_decay_style));
    }
    return;
  }
  if (!given(app, flag)) {
    config_error("--lr-decay-style is WSD, but {} is not given; give the length of its last part", flag);
  }
  const std::int64_t last_part = in_samples(a) ? a.lr_wsd_decay_samples : a.lr_wsd_decay_iters;
  const std::int64_t decay = in_samples(a) ? a.lr_decay_samples : a.lr_decay_iters;
  if (last_part > decay) {
    config_error("{} is {}, but the whole decay is {}; use at most {}", flag, last_part, decay, decay);
  }
}

void refuse_skipped(bool shown, std::string_view flag, std::int64_t iteration, const ProgramArguments& a) {
  if (!shown || !std::ranges::binary_search(a.iterations_to_skip, iteration)) return;
  config_error("{} needs iteration {}, which --iterations-to-skip names; remove one of them", flag, iteration);
}

}  // namespace

void check_limit(std::string_view flag, std::int64_t value, std::int64_t most, std::string_view why) {
  if (value > most) config_error("{} is {}; use at most {}{}", flag, value, most, why);
}

namespace {

// Evaluation alone has no schedule: what the command line says of one is of the run that trained. How long that is,
// says which samples are evaluated.
void drop_schedule(ProgramArguments& a) {
  const train::TrainerOptions none;
  if (in_samples(a)) a.train_iters = std::max<std::int64_t>(1, a.train_samples / a.global_batch_size);
  a.train_samples = a.lr_decay_samples = a.lr_warmup_samples = a.lr_wsd_decay_samples = 0;
  a.lr_decay_iters = a.train_iters;
  a.lr_warmup_iters = a.lr_wsd_decay_iters = 0;
  a.lr_warmup_fraction.reset();
  a.lr_warmup_init = none.lr_warmup_init;
  a.lr = none.lr;
  a.min_lr = none.min_lr;
  a.lr_decay_style = none.lr_decay_style;
  a.weight_decay_incr_style = none.weight_decay_incr_style;
  a.start_weight_decay.reset();
  a.end_weight_decay.reset();
}

}  // namespace

void settle_schedule(const Command& app, ProgramArguments& a) {
  if (a.skip_train) return drop_schedule(a);
  check_unit(app, a);
  settle_length(app, a);
  if (a.min_lr > a.lr) config_error("--min-lr is {}, above --lr {}; use at most --lr", a.min_lr, a.lr);
  check_warmup(a);
  check_wsd(app, a);
  if (a.override_opt_param_scheduler && a.use_checkpoint_opt_param_scheduler) {
    config_error("--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler are both given; keep one");
  }
}

void settle_weight_decay(const Command& app, ProgramArguments& a) {
  if (a.skip_train) return;
  const bool constant = a.weight_decay_incr_style == train::WeightDecayIncrStyle::kConstant;
  for (const char* flag : {"--start-weight-decay", "--end-weight-decay"}) {
    if (given(app, flag) != constant) continue;
    if (constant) {
      config_error("{} is given, but --weight-decay-incr-style is constant; write linear or cosine, or remove it",
                   flag);
    }
    config_error("--weight-decay-incr-style is {}, but {} is not given; add it",
                 train::word_of(a.weight_decay_incr_style), flag);
  }
  if (constant) return;
  if (given(app, "--weight-decay")) a.without_effect.push_back(fmt::format("--weight-decay {}", a.weight_decay));
  if (*a.start_weight_decay > *a.end_weight_decay) {
    config_error("--start-weight-decay is {}, above --end-weight-decay {}; use at most that", *a.start_weight_decay,
                 *a.end_weight_decay);
  }
}

void settle_loss_scale(const Command& app, ProgramArguments& a) {
  const bool adapts = a.fp16 && !a.loss_scale.constant;
  for (const char* flag :
       {"--loss-scale", "--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis"}) {
    const bool has_effect = adapts || (a.fp16 && std::string_view(flag) == "--loss-scale");
    if (has_effect || !given(app, flag)) continue;
    a.without_effect.push_back(fmt::format("{} {}", flag, app.text_of(flag)));
  }
  if (adapts && a.loss_scale.minimum > a.loss_scale.initial) {
    config_error("--min-loss-scale is {}, above --initial-loss-scale {}; use at most that", a.loss_scale.minimum,
                 a.loss_scale.initial);
  }
}

void settle_iterations_to_skip(bool planned, ProgramArguments& a) {
  std::vector<std::int64_t>& skipped = a.iterations_to_skip;
  if (planned) skipped.clear();
  if (skipped.empty()) return;
  std::ranges::sort(skipped);
  skipped.erase(std::ranges::unique(skipped).begin(), skipped.end());
  if (skipped.back() > a.train_iters) {
    config_error("--iterations-to-skip names {}, but the run has {} iteration{}; use 1 to {}", skipped.back(),
                 a.train_iters, a.train_iters == 1 ? "" : "s", a.train_iters);
  }
  if (std::ssize(skipped) == a.train_iters) {
    config_error("--iterations-to-skip names all {} iterations, so nothing is trained; name less", a.train_iters);
  }
  const std::int64_t second = std::min<std::int64_t>(2, a.train_iters);
  refuse_skipped(a.print_schedule, "--print-schedule", second, a);
  refuse_skipped(a.report.has_value(), "--report", second, a);
  refuse_skipped(a.profile.enabled, "--profile", std::min<std::int64_t>(a.profile.step_end, a.train_iters), a);
}

}  // namespace loom::cli
