#include "engine/log/megatron_log.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <ostream>

namespace loom::log {
namespace {

std::string date_text(double wall_time_s) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(wall_time_s)));
}

// As Megatron's print_datetime; the blank before the end of the line is its own.
std::string datetime_line(std::string_view what, double wall_time_s) {
  return fmt::format("[{}] datetime: {} \n", what, date_text(wall_time_s));
}

// As Python prints a float: with a point also where it is whole.
std::string megabytes(std::int64_t bytes) {
  const std::string text = fmt::format("{}", static_cast<double>(bytes) / (1 << 20));
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

void add(std::vector<std::pair<std::string, double>>& sums, const std::string& name, double value) {
  const auto known = std::ranges::find(sums, name, &std::pair<std::string, double>::first);
  if (known == sums.end()) {
    sums.emplace_back(name, value);
  } else {
    known->second += value;
  }
}

}  // namespace

std::string begin_lines(bool skip_train, double wall_time_s) {
  const std::string setup = datetime_line("after dataloaders are built", wall_time_s) + "done with setup ...\n";
  if (skip_train) return setup + "skipping training (--skip-train is on) ...\n";
  return setup + "training ...\n" + datetime_line("before the start of training step", wall_time_s);
}

std::string end_line(double wall_time_s) { return datetime_line("after training is done", wall_time_s); }

MegatronLog::MegatronLog(MegatronLogOptions options, std::ostream& out, const MonotonicClock& clock, WallClock wall)
    : options_(std::move(options)), out_(out), wall_(std::move(wall)), timer_(clock) {}

void MegatronLog::begin_step(std::int64_t) { timer_.begin(); }

void MegatronLog::end_step(std::int64_t) {
  timer_.end();
  ended_s_ = wall_();
}

void MegatronLog::step_done(const train::StepMetrics& metrics) {
  step_ = metrics.step;
  count(metrics);
  if (metrics.step % options_.log_interval == 0) out_ << line(metrics) + "\n" << std::flush;
  if (!metrics.held_out_loss) return;
  const bool last = metrics.step == options_.train_iters;
  print_evaluation(last ? " on validation set" : "", *metrics.held_out_loss, metrics.held_out_reports);
}

void MegatronLog::count(const train::StepMetrics& metrics) {
  if (!std::isfinite(metrics.loss)) ++nan_;
  if (metrics.skipped) {
    ++skipped_;
    return;
  }
  ++advanced_;
  add(sums_, kLossName, metrics.loss);
  for (const auto& [name, value] : metrics.reports) add(sums_, name, value);
}

std::string MegatronLog::line(const train::StepMetrics& metrics) {
  const double seconds = timer_.take_mean_s();
  std::string text = fmt::format(" [{}] iteration {:8d}/{:8d} | consumed samples: {:12d} |", date_text(ended_s_),
                                 metrics.step, options_.train_iters, metrics.samples_consumed);
  if (metrics.samples_skipped > 0) text += fmt::format(" skipped samples: {:12d} |", metrics.samples_skipped);
  text += fmt::format(" elapsed time per iteration (ms): {:.1f} |", seconds * 1000.0);
  if (options_.flops_per_rank) {
    text += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", options_.flops_per_rank() / (seconds * 1e12));
  }
  text +=
      fmt::format(" learning rate: {:.6E} | global batch size: {:5d} |", metrics.next_lr, options_.global_batch_size);
  text += losses();
  text += fmt::format(" loss scale: {:.1f} |", metrics.loss_scale);
  const StepFigures& figures = options_.figures;
  if (!metrics.skipped) text += fmt::format(" grad norm: {:.3f} |", metrics.grad_norm);
  if (figures.zeros_in_grad && !metrics.skipped) {
    text += fmt::format(" num zeros: {:.0f} |", figures.zeros_in_grad());
  }
  if (figures.params_norm) text += fmt::format(" params norm: {:.3f} |", figures.params_norm());
  text += fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} |", skipped_, nan_);
  sums_.clear();
  advanced_ = skipped_ = nan_ = 0;
  return text;
}

std::string MegatronLog::losses() const {
  std::string text;
  for (const auto& [name, sum] : sums_) {
    text += fmt::format(" {}: {:.6E} |", name, sum / static_cast<double>(advanced_));
  }
  return text;
}

void MegatronLog::print_evaluation(std::string_view place, double loss, const train::Reports& reports) {
  std::string text = fmt::format(" validation loss at iteration {}{} | {} value: {:.6E} | {} PPL: {:.6E} | ", step_,
                                 place, kLossName, loss, kLossName, std::exp(std::min(20.0, loss)));
  for (const auto& [name, value] : reports) text += fmt::format("{} value: {:.6E} | ", name, value);
  const std::string dashes(text.size() + 1, '-');
  out_ << dashes + "\n" + text + "\n" + dashes + "\n" << std::flush;
}

void MegatronLog::evaluated(std::int64_t step, const train::Evaluation& held_out) {
  step_ = step;
  print_evaluation(" on validation set", held_out.loss, held_out.reports);
}

MegatronMemoryLine::MegatronMemoryLine(std::int64_t log_interval, std::function<MemoryFigures()> memory,
                                       std::ostream& out)
    : log_interval_(log_interval), memory_(std::move(memory)), out_(out) {}

void MegatronMemoryLine::step_done(const train::StepMetrics& metrics) {
  if (printed_) return;
  const MemoryFigures now = memory_();
  peaks_.max_allocated_bytes = std::max(peaks_.max_allocated_bytes, now.max_allocated_bytes);
  peaks_.max_reserved_bytes = std::max(peaks_.max_reserved_bytes, now.max_reserved_bytes);
  if (metrics.step % log_interval_ != 0) return;
  printed_ = true;
  out_ << fmt::format(
              "[Rank 0] (after {} iterations) memory (MB) | allocated: {} | max allocated: {} | reserved: {} | max "
              "reserved: {}\n",
              metrics.step, megabytes(now.allocated_bytes), megabytes(peaks_.max_allocated_bytes),
              megabytes(now.reserved_bytes), megabytes(peaks_.max_reserved_bytes))
       << std::flush;
}

void MegatronLog::run_done(const std::optional<train::Evaluation>& test) {
  if (test) print_evaluation(" on test set", test->loss, test->reports);
}

}  // namespace loom::log
