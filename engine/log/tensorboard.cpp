#include "engine/log/tensorboard.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "engine/core/log.h"
#include "engine/formats/events/event_file.h"
#include "engine/io/output_target.h"
#include "engine/log/megatron_log.h"

namespace loom::log {
namespace {

constexpr std::int64_t kLongestWait_ns = 120'000'000'000;  // the tensorboard package's flush_secs

}  // namespace

TensorBoard::TensorBoard(LogOptions options, TensorBoardRun run, MonotonicClock clock, WallClock wall)
    : options_(std::move(options)),
      run_(std::move(run)),
      clock_(std::move(clock)),
      wall_(std::move(wall)),
      timer_(clock_),
      file_(std::make_unique<io::EventFile>(io::EventFile::create(*options_.tensorboard_dir, wall_()))) {}

TensorBoard::~TensorBoard() = default;

const std::filesystem::path& TensorBoard::file() const { return file_->path(); }

void TensorBoard::begin_step(std::int64_t) { timer_.begin(); }

void TensorBoard::end_step(std::int64_t) { timer_.end(); }

void TensorBoard::step_done(const train::StepMetrics& metrics) {
  step_ = metrics.step;
  samples_ = metrics.samples_consumed;
  if (step_ % options_.tensorboard_log_interval == 0) add_step(metrics);
  if (step_ % options_.log_interval == 0) add_timers();
  if (metrics.held_out_loss) add_validation({*metrics.held_out_loss, metrics.held_out_reports});
  flush_when_due();
}

void TensorBoard::add(const std::string& tag, double value, std::int64_t step) {
  if (file_->waiting() == 0) waiting_since_ns_ = clock_();
  file_->add(wall_(), step, tag, static_cast<float>(value));
}

void TensorBoard::add_twice(const std::string& tag, double value) {
  add(tag, value, step_);
  if (samples_ > 0) add(tag + " vs samples", value, samples_);
}

void TensorBoard::add_step(const train::StepMetrics& metrics) {
  add_twice("learning-rate", metrics.next_lr);
  if (metrics.samples_skipped > 0) add("skipped-train-samples", static_cast<double>(metrics.samples_skipped), step_);
  add_twice("batch-size", static_cast<double>(run_.global_batch_size));
  if (!metrics.skipped) {
    add_twice(kLossName, metrics.loss);
    for (const auto& [name, value] : metrics.reports) add_twice(name, value);
  }
  if (options_.log_loss_scale_to_tensorboard) add_twice("loss-scale", metrics.loss_scale);
  if (options_.log_world_size_to_tensorboard) add_twice("world-size", run_.world_size);
  if (!metrics.skipped) add_twice("grad-norm", metrics.grad_norm);
  if (run_.params_norm) add_twice("params-norm", run_.params_norm());
  if (options_.log_memory_to_tensorboard) add_memory();
}

void TensorBoard::add_memory() {
  const MemoryFigures memory = run_.memory();
  add("mem-reserved-bytes", static_cast<double>(memory.reserved_bytes), step_);
  add("mem-allocated-bytes", static_cast<double>(memory.allocated_bytes), step_);
  add("mem-max-allocated-bytes", static_cast<double>(memory.max_allocated_bytes), step_);
}

void TensorBoard::add_timers() {
  const double seconds = timer_.take_mean_s();
  if (!options_.log_timers_to_tensorboard) return;
  add_twice("iteration-time", seconds);
  if (options_.log_throughput) add("throughput", run_.flops_per_rank() / (seconds * 1e12), step_);
}

void TensorBoard::add_validation(const train::Evaluation& held_out) {
  const std::string tag = std::string(kLossName) + " validation";
  add_twice(tag, held_out.loss);
  if (options_.log_validation_ppl_to_tensorboard) add_twice(tag + " ppl", std::exp(std::min(20.0, held_out.loss)));
  for (const auto& [name, value] : held_out.reports) add_twice(name + " validation", value);
}

void TensorBoard::evaluated(std::int64_t step, const train::Evaluation& held_out) {
  step_ = step;
  add_validation(held_out);
}

void TensorBoard::run_done(const std::optional<train::Evaluation>&) { flush(); }

void TensorBoard::run_stopped() { flush(); }

void TensorBoard::flush_when_due() {
  if (file_->waiting() == 0) return;
  const bool full = file_->waiting() >= options_.tensorboard_queue_size;
  if (full || clock_() - waiting_since_ns_ >= kLongestWait_ns) flush();
}

void TensorBoard::flush() {
  const std::int64_t waiting = file_->waiting();
  const int failed = file_->flush();
  if (failed == 0) return;
  missing_ += waiting;
  if (missing_ > waiting) return;
  reason_ = fmt::format("step {}: {}", step_, io::reason_of(failed));
  logger().warn("{}: cannot write the scalars up to {}; training goes on without them", file_->path().string(),
                reason_);
}

std::optional<std::string> TensorBoard::problem() const {
  if (missing_ == 0) return std::nullopt;
  return fmt::format("{}: {} scalar{} are missing (up to {})", file_->path().string(), missing_,
                     missing_ == 1 ? "" : "s", reason_);
}

}  // namespace loom::log
