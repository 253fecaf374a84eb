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

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace loom::train {

struct StepMetrics {
  std::int64_t step = 0;  // optimizer steps done, this one included
  double loss = 0.0;      // mean over the global batch
  double grad_norm = 0.0;
  double lr = 0.0;
  double tokens_per_second = 0.0;                                       // of the whole job
  std::vector<std::pair<std::string, std::int64_t>> peak_memory_bytes;  // of the device, by category
  std::optional<double> held_out_loss;
  std::vector<std::pair<std::string, double>> reports = {};  // of the loss function, by name
};

enum class MetricsMode { kNew, kAppend };

class MetricsWriter {
 public:
  // Makes the folders of `path`. kNew empties a file that is there, kAppend (a resumed run) writes behind it.
  explicit MetricsWriter(std::filesystem::path path, MetricsMode mode = MetricsMode::kNew);

  void write(const StepMetrics& metrics);

 private:
  const std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace loom::train
