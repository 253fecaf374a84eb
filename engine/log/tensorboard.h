// TensorBoard: the scalars of a run in an event file, under Megatron-LM's tags.
//
// Step        every tensorboard_log_interval steps: learning-rate (of the next step), batch-size, lm loss and the
//             figures of the loss function by name, grad-norm; loss-scale unless turned off; world-size if a flag
//             requests it. Each also as "TAG vs samples", whose step is the number of samples consumed.
//             skipped-train-samples, if any. A step without an update has no losses and no gradient norm.
// Memory      by flag: mem-reserved-bytes, mem-allocated-bytes, mem-max-allocated-bytes, of the emulated
//             device. Megatron's mem-allocated-count has no counterpart.
// Timers      by flag, every log_interval steps: iteration-time in seconds (also vs samples), and with
//             log_throughput throughput in TFLOP/s of a rank. Megatron's other timers have no counterpart.
// Evaluation  lm loss validation (also vs samples); by flag, lm loss validation ppl (also vs samples), which is
//             exp(min(20, loss)).
// Written     when tensorboard_queue_size scalars wait or two minutes after the first of them, and at the end; a killed
//             run loses the waiting scalars.
// Failure     scalars that cannot be written (disk full) end nothing: one warning is logged, and problem() returns how
//             many are missing.
// Resumed     a resumed run writes a new file into the same folder; TensorBoard joins them.
// Threads     the rank's host thread. One rank of the job writes: the last.
// Errors      ConfigError with the path if the file cannot be made.
// Source      Megatron-LM core_v0.12.1, megatron/training/training.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/log/clock.h"
#include "engine/log/memory_figures.h"
#include "engine/log/options.h"
#include "engine/log/step_figures.h"
#include "engine/log/step_timer.h"
#include "engine/train/step/step_observer.h"

namespace loom::io {
class EventFile;
}

namespace loom::log {

struct TensorBoardRun {
  int world_size = 1;
  std::int64_t global_batch_size = 1;
  std::function<double()> flops_per_rank = {};  // of a step, known after the first; with log_throughput
  StepFigures figures = {};
  std::function<MemoryFigures()> memory = {};  // with log_memory_to_tensorboard
};

class TensorBoard final : public train::StepObserver {
 public:
  // options.tensorboard_dir is set; its folder is made.
  TensorBoard(LogOptions options, TensorBoardRun run, MonotonicClock clock = steady_clock_ns,
              WallClock wall = wall_clock_s);
  ~TensorBoard() override;

  void begin_step(std::int64_t step) override;
  void end_step(std::int64_t step) override;
  void step_done(const train::StepMetrics& metrics) override;
  void evaluated(std::int64_t step, const train::Evaluation& held_out) override;
  void run_done(const std::optional<train::Evaluation>& test) override;
  void run_stopped() override;

  const std::filesystem::path& file() const;
  // What is missing in the file, for the end of the run; none if every scalar was written.
  std::optional<std::string> problem() const;

 private:
  void add(const std::string& tag, double value, std::int64_t step);
  void add_twice(const std::string& tag, double value);
  void add_step(const train::StepMetrics& metrics);
  void add_layers(bool skipped);
  void add_memory();
  void add_timers();
  void add_validation(const train::Evaluation& held_out);
  void flush_when_due();
  void flush();

  const LogOptions options_;
  const TensorBoardRun run_;
  const MonotonicClock clock_;
  const WallClock wall_;
  StepTimer timer_;
  std::unique_ptr<io::EventFile> file_;
  std::int64_t step_ = 0;     // the present one
  std::int64_t samples_ = 0;  // consumed up to and including it; 0: unknown
  std::int64_t waiting_since_ns_ = 0;
  std::int64_t missing_ = 0;  // scalars
  std::string reason_;        // of the first missing ones
};

}  // namespace loom::log
