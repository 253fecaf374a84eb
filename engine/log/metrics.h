// MetricsWriter: metrics.jsonl, one JSON object per line and step.
//
// Line      {"step": 1, "loss": 5.5, "grad_norm": 1.2, "lr": 0.0003, "tokens_per_second": 12000.0,
//           "peak_memory_bytes": {"activation": 1048576, ...}, "peak_host_memory_bytes": 0, "held_out_loss": 5.6}; the
//           last key only if evaluated. If the loss function reports figures of its own, "reports": {"name": 1.5}
//           is the last key, and "held_out_reports", of the same form, follows "held_out_loss".
//           Under a loss scale, "loss_scale": 65536.0 follows "lr", and "skipped": true follows that in a step without
//           update, whose "grad_norm" is null without a warning. Of a model with experts, "expert_tokens": [512, 498]
//           follows the peaks.
//           A number that is not finite is null, and one warning is logged for a whole run. Keys always have this
//           order.
// Earlier   lines of an earlier run are kept: a new run moves them to metrics.1.jsonl (the first free number)
//           and logs the move. A resumed run writes behind them; an incomplete last line is removed, which is
//           logged. If a step then has two lines, readers use the later one.
// Failure   a line that cannot be written (disk full) ends nothing: one warning is logged, no half line remains, the
//           next step tries again, and problem() lists what is missing.
// Threads   one thread at a time; one rank of the job writes.
// Errors    ConfigError with the path if the file cannot be opened. Every line is written at once, so a run that dies
//           keeps its lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/log/step_figures.h"
#include "engine/train/step/step_observer.h"

namespace loom::log {

enum class MetricsMode { kNew, kAppend };

class MetricsWriter final : public train::StepObserver {
 public:
  // Makes the folders of `path`. kNew begins an empty file, kAppend (a resumed run) appends.
  explicit MetricsWriter(std::filesystem::path path, MetricsMode mode = MetricsMode::kNew, StepFigures figures = {});
  ~MetricsWriter() override;
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void write(const train::StepMetrics& metrics);
  // {"step": 0, "held_out_loss": 5.6}: an evaluation without training.
  void evaluated(std::int64_t step, const train::Evaluation& held_out) override;
  void step_done(const train::StepMetrics& metrics) override { write(metrics); }

  // The missing steps and the reason, for the end of the run; none if every line was written.
  std::optional<std::string> problem() const;

 private:
  void open_file(const std::filesystem::path& target, MetricsMode mode);
  // Ends the last line of an earlier run, or removes it if it is incomplete: ours begins on a line of its own.
  void mend_last_line();
  void warn_of_values(std::int64_t step, const std::vector<std::string>& not_finite);
  void append(std::int64_t step, const std::string& line);
  void missed(std::int64_t step, int error_number);

  const std::filesystem::path path_;
  const StepFigures figures_;
  int fd_ = -1;
  bool is_file_ = false;
  bool warned_of_values_ = false;
  std::int64_t missing_ = 0;  // lines
  std::string first_missing_ = {};
};

}  // namespace loom::log
