// MetricsWriter: metrics.jsonl, one JSON object a line and step.
//
// Line     {"step": 1, "loss": 5.5, "grad_norm": 1.2, "lr": 0.0003, "tokens_per_second": 12000.0,
//          "peak_memory_bytes": {"activation": 1048576, ...}, "held_out_loss": 5.6}; the last key only where evaluated.
//          Where the loss function reports figures of its own, "reports": {"name": 1.5} is the last key.
//          A number that is not finite is null, and a warning is logged. Keys always come in this order.
// Threads  one thread at a time; one rank of the job writes.
// Errors   ConfigError when the file cannot be opened, Error when a line cannot be written (disk full); both name the
//          path. Every line is flushed, so a run that dies keeps its lines.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/train/step_observer.h"

namespace loom::train {

enum class MetricsMode { kNew, kAppend };

class MetricsWriter final : public StepObserver {
 public:
  // Makes the folders of `path`. kNew empties a file that is there, kAppend (a resumed run) writes behind it.
  explicit MetricsWriter(std::filesystem::path path, MetricsMode mode = MetricsMode::kNew);

  void write(const StepMetrics& metrics);
  // {"step": 0, "held_out_loss": 5.6}: an evaluation without training.
  void evaluated(std::int64_t step, double held_out_loss) override;
  void step_done(const StepMetrics& metrics) override { write(metrics); }

 private:
  void write_line(const std::string& line, std::int64_t step);

  const std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace loom::train
