// The report of a training run (--report): the lines of metrics.jsonl, and one step in virtual time.
//
// Step     the second of this run (the first also fills the caches of later steps), or the only one: rank 0's streams,
//          memory and schedule, timed on the device profile of --report-device, assuming identical peers.
// JSON     "report": "run"; "model", "parameters", "device", "world_size", "mode", "micro_batch_size", "micro_batches",
//          "seq_length"; "steps": lines of metrics.jsonl, and "steps_of_run", more than those if the run is longer
//          than kReportSteps: then every n-th line is kept, all evaluations, and the last; "recorded_step"; "time",
//          "communication" (collective_sums.h), "timeline", "memory_over_step", "groups" of that step (report_step.h),
//          "host_bytes", the peak of the host's memory up to then; "warnings" of the configuration and the
//          schedule; "configuration" (report_configuration.h).
// Errors   read_report_inputs: ConfigError for an unusable profile or path. end_step: DeviceError if the
//          profile has no rate for a dtype of the step. write: Error if writing fails.
// Threads  read_report_inputs once per process; a RunReport lives on the host thread of rank 0.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/recorder.h"
#include "engine/observe/options.h"
#include "engine/train/sections.h"
#include "engine/train/step/step_observer.h"
#include "engine/virtual_time/profile.h"

namespace loom::observe {

inline constexpr std::int64_t kReportSteps = 5'000;

// Inputs of the report, read before anything is allocated.
struct ReportInputs {
  virtual_time::HardwareProfile profile;
  nlohmann::ordered_json configuration;
};
// Precondition: --report is given.
ReportInputs read_report_inputs(const models::ModelOptions& model, const train::ParallelOptions& parallel,
                                const ReportOptions& options);

// At most about `limit` of the lines, as "steps" above.
nlohmann::ordered_json thinned_steps(const std::vector<nlohmann::ordered_json>& lines,
                                     std::int64_t limit = kReportSteps);

class RunReport final : public train::StepObserver {
 public:
  struct About {
    std::string model;
    std::int64_t parameters = 0;
    std::int64_t micro_batches = 0;          // per rank and step
    std::string mode = {};                   // "2 x 4: shards over 4, replicates over 2"; "" without sharding
    std::vector<std::string> warnings = {};  // of the configuration
  };
  // The references outlive the report.
  RunReport(const train::TrainSections& arguments, const ReportOptions& options, const ReportInputs& inputs,
            About about);

  void begin_step(std::int64_t step) override;
  void end_step(std::int64_t step) override;
  // Called at the end of the run; reads its metrics.jsonl.
  void write() const;

 private:
  const train::TrainSections& arguments_;
  const ReportOptions& options_;
  const ReportInputs& inputs_;
  std::optional<std::int64_t> recorded_;  // the step; known when the first one begins
  nlohmann::ordered_json json_;
  std::optional<device::Recorder> recorder_;
};

}  // namespace loom::observe
