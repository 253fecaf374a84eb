#include "engine/cli/words/schedule_rules.h"

#include <algorithm>

#include "engine/cli/words/flags.h"
#include "engine/core/error.h"

namespace loom::cli {
namespace {

constexpr std::int64_t kMostSamples = std::int64_t{1} << 53;  // whole numbers up to here are doubles

bool in_samples(const train::ScheduleOptions& schedule) { return schedule.train_samples > 0; }

void settle_length(const Command& app, train::ScheduleOptions& schedule) {
  if (!in_samples(schedule)) {
    if (!given(app, "--lr-decay-iters")) schedule.lr_decay_iters = schedule.train_iters;
    return;
  }
  check_limit("--train-samples", schedule.train_samples, kMostSamples);
  check_limit("--lr-decay-samples", schedule.lr_decay_samples, kMostSamples);
  schedule.train_iters = schedule.train_samples / schedule.global_batch_size;
  if (schedule.train_iters == 0) {
    config_error("--train-samples is {}, less than one --global-batch-size of {}; use at least {}",
                 schedule.train_samples, schedule.global_batch_size, schedule.global_batch_size);
  }
  if (schedule.train_iters > kMostSteps) {
    config_error("--train-samples is {}, which is {} steps of --global-batch-size {}; use at most {} steps",
                 schedule.train_samples, schedule.train_iters, schedule.global_batch_size, kMostSteps);
  }
  if (!given(app, "--lr-decay-samples")) schedule.lr_decay_samples = schedule.train_samples;
}

void check_warmup(train::ScheduleOptions& schedule, job::WrittenFlags& written) {
  const std::string_view unit = in_samples(schedule) ? "samples" : "iters";
  const std::int64_t warmup = in_samples(schedule) ? schedule.lr_warmup_samples : schedule.lr_warmup_iters;
  const std::int64_t length = in_samples(schedule) ? schedule.train_samples : schedule.train_iters;
  const std::int64_t decay = in_samples(schedule) ? schedule.lr_decay_samples : schedule.lr_decay_iters;
  const std::int64_t limit = std::min(length, decay);
  if (schedule.lr_warmup_fraction && warmup > 0) {
    config_error("--lr-warmup-fraction and --lr-warmup-{} are both given; keep one", unit);
  }
  if (warmup >= limit) {
    config_error("--lr-warmup-{} is {}, but --{}-{} is {}; use less than {}", unit, warmup,
                 limit == length ? "train" : "lr-decay", unit, limit, limit);
  }
  if (schedule.lr_warmup_init > 0 && warmup == 0 && schedule.lr_warmup_fraction.value_or(0) == 0) {
    written.without_effect.push_back(fmt::format("--lr-warmup-init {}", schedule.lr_warmup_init));
  }
}

void check_wsd(const Command& app, const train::ScheduleOptions& schedule) {
  const std::string flag = fmt::format("--lr-wsd-decay-{}", in_samples(schedule) ? "samples" : "iters");
  const std::string other = fmt::format("--lr-wsd-decay-{}", in_samples(schedule) ? "iters" : "samples");
  if (schedule.lr_decay_style != train::LrDecayStyle::kWsd) {
    for (const std::string& name : {flag, std::string("--lr-wsd-decay-style")}) {
      if (!given(app, name)) continue;
      config_error("{} is given, but --lr-decay-style is {}; write --lr-decay-style WSD, or remove it", name,
                   train::word_of(schedule.lr_decay_style));
    }
    return;
  }
  if (given(app, other)) return;  // which a rule refuses
  if (!given(app, flag)) {
    config_error("--lr-decay-style is WSD, but {} is not given; give the length of its last part", flag);
  }
  const std::int64_t last_part = in_samples(schedule) ? schedule.lr_wsd_decay_samples : schedule.lr_wsd_decay_iters;
  const std::int64_t decay = in_samples(schedule) ? schedule.lr_decay_samples : schedule.lr_decay_iters;
  if (last_part > decay) {
    config_error("{} is {}, but the whole decay is {}; use at most {}", flag, last_part, decay, decay);
  }
}

void refuse_skipped(bool shown, std::string_view flag, std::int64_t iteration, const train::ScheduleOptions& schedule) {
  if (!shown || !std::ranges::binary_search(schedule.iterations_to_skip, iteration)) return;
  config_error("{} needs iteration {}, which --iterations-to-skip names; remove one of them", flag, iteration);
}

}  // namespace

void check_limit(std::string_view flag, std::int64_t value, std::int64_t most, std::string_view why) {
  if (value > most) config_error("{} is {}; use at most {}{}", flag, value, most, why);
}

namespace {

// Evaluation alone has no schedule: what the command line says of one is of the run that trained. How long that is,
// says which samples are evaluated.
void drop_schedule(train::ScheduleOptions& schedule) {
  const train::ScheduleOptions none;
  if (in_samples(schedule))
    schedule.train_iters = std::max<std::int64_t>(1, schedule.train_samples / schedule.global_batch_size);
  schedule.train_samples = schedule.lr_decay_samples = schedule.lr_warmup_samples = schedule.lr_wsd_decay_samples = 0;
  schedule.lr_decay_iters = schedule.train_iters;
  schedule.lr_warmup_iters = schedule.lr_wsd_decay_iters = 0;
  schedule.lr_warmup_fraction.reset();
  schedule.lr_warmup_init = none.lr_warmup_init;
  schedule.lr = none.lr;
  schedule.min_lr = none.min_lr;
  schedule.lr_decay_style = none.lr_decay_style;
  schedule.weight_decay_incr_style = none.weight_decay_incr_style;
  schedule.start_weight_decay.reset();
  schedule.end_weight_decay.reset();
}

}  // namespace

void settle_schedule(const Command& app, train::ScheduleOptions& schedule, job::WrittenFlags& written) {
  if (schedule.skip_train) return drop_schedule(schedule);
  settle_length(app, schedule);
  check_warmup(schedule, written);
  check_wsd(app, schedule);
}

void check_weight_decay(const Command& app, const train::ScheduleOptions& schedule) {
  if (schedule.skip_train || schedule.weight_decay_incr_style == train::WeightDecayIncrStyle::kConstant) return;
  for (const char* flag : {"--start-weight-decay", "--end-weight-decay"}) {
    if (given(app, flag)) continue;
    config_error("--weight-decay-incr-style is {}, but {} is not given; add it",
                 train::word_of(schedule.weight_decay_incr_style), flag);
  }
  if (*schedule.start_weight_decay > *schedule.end_weight_decay) {
    config_error("--start-weight-decay is {}, above --end-weight-decay {}; use at most that",
                 *schedule.start_weight_decay, *schedule.end_weight_decay);
  }
}

void settle_loss_scale(const Command& app, train::OptimizerOptions& optimizer, job::WrittenFlags& written) {
  const bool adapts = optimizer.fp16 && !optimizer.loss_scale.constant;
  for (const char* flag :
       {"--loss-scale", "--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis"}) {
    const bool has_effect = adapts || (optimizer.fp16 && std::string_view(flag) == "--loss-scale");
    if (has_effect || !given(app, flag)) continue;
    written.without_effect.push_back(fmt::format("{} {}", flag, app.text_of(flag)));
  }
  if (adapts && optimizer.loss_scale.minimum > optimizer.loss_scale.initial) {
    config_error("--min-loss-scale is {}, above --initial-loss-scale {}; use at most that",
                 optimizer.loss_scale.minimum, optimizer.loss_scale.initial);
  }
}

void settle_iterations_to_skip(bool planned, job::Job& a) {
  std::vector<std::int64_t>& skipped = a.schedule.iterations_to_skip;
  if (planned) skipped.clear();
  if (skipped.empty()) return;
  std::ranges::sort(skipped);
  skipped.erase(std::ranges::unique(skipped).begin(), skipped.end());
  if (skipped.back() > a.schedule.train_iters) {
    config_error("--iterations-to-skip names {}, but the run has {} iteration{}; use 1 to {}", skipped.back(),
                 a.schedule.train_iters, a.schedule.train_iters == 1 ? "" : "s", a.schedule.train_iters);
  }
  if (std::ssize(skipped) == a.schedule.train_iters) {
    config_error("--iterations-to-skip names all {} iterations, so nothing is trained; name less",
                 a.schedule.train_iters);
  }
  const std::int64_t second = std::min<std::int64_t>(2, a.schedule.train_iters);
  refuse_skipped(a.report.print_schedule, "--print-schedule", second, a.schedule);
  refuse_skipped(a.report.path.has_value(), "--report", second, a.schedule);
  refuse_skipped(a.report.memory_snapshot.has_value(), "--memory-snapshot", second, a.schedule);
  refuse_skipped(a.profile.enabled, "--profile", std::min<std::int64_t>(a.profile.step_end, a.schedule.train_iters),
                 a.schedule);
}

}  // namespace loom::cli
