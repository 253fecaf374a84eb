// StepMetrics: the figures of one optimizer step, the same on every rank but for memory.
#pragma once

#include <cstdint>
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

}  // namespace loom::train
