// MegatronLog: the lines of Megatron-LM's training_log, byte for byte, so that scripts for its logs read ours.
//
// Step        one line every log_interval steps, its fields ending in " |":
//              [2026-11-21 22:45:37] iteration        5/      10 | consumed samples:           40 | elapsed time per
//             iteration (ms): 123.4 | learning rate: 1.250000E-06 | global batch size:     8 | lm loss: 1.087500E+01 |
//             loss scale: 1.0 | grad norm: 2.000 | number of skipped iterations:   0 | number of nan iterations:   0 |
//             "skipped samples: {:12d}" follows the consumed ones if there are any, "throughput per GPU
//             (TFLOP/s/GPU): {:.1f}" the elapsed time if a flag requests it; figures of the loss function follow the
//             loss, in its form; a step without an update has no gradient norm.
// Mean        losses are averaged over the interval's steps with an update; a skipped one counts in the
//             elapsed time and as skipped. The learning rate is the rate of the next step.
// Evaluation  " validation loss at iteration N | lm loss value: {:.6E} | lm loss PPL: {:.6E} | " between two lines of
//             dashes; PPL = exp(min(20, loss)). "at iteration N on validation set" after the last step, "at iteration N
//             on test set" for the test data. Figures of the loss function follow: " NAME value: {:.6E} |".
// Begin, end  "[after dataloaders are built] datetime: 2026-11-21 22:45:37 ", "done with setup ...", "training ..." (or
//             "skipping training (--skip-train is on) ..."), "[before the start of training step] datetime: ... "; at
//             the end "[after training is done] datetime: ... ". The first rank prints these.
// Memory      "[Rank 0] (after 100 iterations) memory (MB) | allocated: 93.5 | max allocated: ... | reserved: ... | max
//             reserved: ...", once, at the first line; MB is 2^20 bytes, of the emulated device.
// Deviations  a loss of 0 or below, or that is not finite, is printed, while Megatron omits it; a step whose loss
//             is not finite counts as nan whether it was skipped or not.
// Threads     the rank's host thread. One rank of the job prints: the last.
// Source      Megatron-LM core_v0.12.1, megatron/training/training.py.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/log/clock.h"
#include "engine/log/memory_figures.h"
#include "engine/log/step_figures.h"
#include "engine/log/step_timer.h"
#include "engine/train/step/step_observer.h"

namespace loom::log {

inline constexpr const char* kLossName = "lm loss";  // Megatron's, of GPT

// The text of the first rank before the first step, and after the last one.
std::string begin_lines(bool skip_train, double wall_time_s);
std::string end_line(double wall_time_s);

struct MegatronLogOptions {
  std::int64_t train_iters = 1;
  std::int64_t log_interval = 100;
  std::int64_t global_batch_size = 1;
  // FLOPs of a step on one rank, known after the first; empty: no throughput.
  std::function<double()> flops_per_rank = {};
  StepFigures figures = {};
};

class MegatronLog final : public train::StepObserver {
 public:
  // `out` outlives this object.
  MegatronLog(MegatronLogOptions options, std::ostream& out, const MonotonicClock& clock = steady_clock_ns,
              WallClock wall = wall_clock_s);

  void begin_step(std::int64_t step) override;
  void end_step(std::int64_t step) override;
  void step_done(const train::StepMetrics& metrics) override;
  void evaluated(std::int64_t step, const train::Evaluation& held_out) override;
  void run_done(const std::optional<train::Evaluation>& test) override;

 private:
  void count(const train::StepMetrics& metrics);
  std::string line(const train::StepMetrics& metrics);
  std::string losses() const;
  void print_evaluation(std::string_view place, double loss, const train::Reports& reports);

  const MegatronLogOptions options_;
  std::ostream& out_;
  const WallClock wall_;
  StepTimer timer_;
  double ended_s_ = 0.0;   // when the last step ended
  std::int64_t step_ = 0;  // the last one
  // Sums over the interval.
  std::vector<std::pair<std::string, double>> sums_;
  std::int64_t advanced_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t nan_ = 0;
};

// The memory line of the first rank.
class MegatronMemoryLine final : public train::StepObserver {
 public:
  // `out` outlives this object; `memory` is called after every step until the line is printed.
  MegatronMemoryLine(std::int64_t log_interval, std::function<MemoryFigures()> memory, std::ostream& out);

  void step_done(const train::StepMetrics& metrics) override;

 private:
  const std::int64_t log_interval_;
  const std::function<MemoryFigures()> memory_;
  std::ostream& out_;
  MemoryFigures peaks_;  // of the steps so far
  bool printed_ = false;
};

}  // namespace loom::log
