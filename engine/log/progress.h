// Progress: the progress of training. A bar that redraws its line on a terminal, plain lines in files and pipes.
//
// Terminal  [========>               ] 12/100  loss 3.1416  12345 tokens/s  1:23 left
//           redrawn at most ten times a second, and at the last step.
// Plain     step 12/100  loss 3.1416  12345 tokens/s  1:23 left
//           every log_interval steps, and at the last one. For files and pipes, and under an MPI launcher, which passes
//           on whole lines and shows a terminal to the program even if it has none.
// Reports   of the loss function follow the loss, in their order: "loss 3.1416  accuracy 0.5000"; on a terminal
//           as many as fit into its width.
// Left      the average time of this run's steps, times the number of steps to come.
// Threads   one thread at a time. Every rank may hold one; only the one made with `shown` prints.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

#include "engine/log/clock.h"
#include "engine/train/step/step_observer.h"

namespace loom::log {

// Whether this file descriptor is a terminal (isatty).
bool is_terminal(int fd);
// Its width; 80 if it reports none.
std::size_t terminal_columns(int fd);

struct ProgressOptions {
  std::int64_t total_steps = 1;
  std::int64_t first_step = 0;    // steps done before this run (resumed training)
  std::int64_t log_interval = 1;  // steps between plain lines
  bool terminal = false;          // is_terminal(of the stream)
  std::size_t columns = 80;       // of the terminal
  bool shown = true;              // rank 0 only
  std::string loss_unit = {};     // "nats per byte", printed behind the losses of evaluations
};

class Progress final : public train::StepObserver {
 public:
  // `out` outlives this object. The time counts from here.
  Progress(const ProgressOptions& options, std::ostream& out, MonotonicClock clock = steady_clock_ns);
  // Leaves the terminal's cursor on a new line, however the loop ended.
  ~Progress() override;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After each step; `steps_done` counts from the start of training and grows.
  void update(std::int64_t steps_done, double loss, double tokens_per_second, const train::Reports& reports = {});
  void skipped(std::int64_t step) override;
  void step_done(const train::StepMetrics& metrics) override;
  void evaluated(std::int64_t step, const train::Evaluation& held_out) override;
  void run_done(const std::optional<train::Evaluation>& test) override;
  // Prints a line of its own, for example of an evaluation; the bar moves below it.
  void note(std::string_view line);

 private:
  struct Bar;

  bool due(std::int64_t steps_done) const;
  std::string evaluation(const std::string& what, double loss, const train::Reports& reports) const;
  std::string line(std::int64_t steps_done, double loss, double tokens_per_second, const train::Reports& reports) const;
  std::string time_left(std::int64_t steps_done) const;
  void draw(const std::string& line);
  void erase();

  const ProgressOptions options_;
  std::ostream& out_;
  const MonotonicClock clock_;
  const std::int64_t started_ns_;
  std::unique_ptr<Bar> bar_;
  std::int64_t drawn_ns_;
  std::size_t drawn_width_ = 0;  // of the text on the bar's line; 0: none
};

}  // namespace loom::log
