#include "engine/observe/report_run.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/log/metrics_keys.h"
#include "engine/observe/collective_sums.h"
#include "engine/observe/metrics_file.h"
#include "engine/observe/report_configuration.h"
#include "engine/observe/report_page.h"
#include "engine/observe/report_step.h"
#include "engine/observe/schedule_view.h"
#include "engine/virtual_time/breakdown.h"
#include "engine/virtual_time/find_profile.h"

namespace loom::observe {
namespace {

using nlohmann::ordered_json;

std::vector<ordered_json> metrics_lines(const std::filesystem::path& path) {
  MetricsFile metrics = read_metrics(path);
  if (metrics.lines.empty())
    raise<Error>("{}: holds no steps for the report; leave the file in place while the run lasts", path.string());
  return std::move(metrics.lines);
}

ordered_json time_json(const device::Recording& recording, const virtual_time::RankTimes& times) {
  const virtual_time::Breakdown breakdown = virtual_time::break_down(recording, times, 0, times.end_ns);
  return {{"step_ns", times.end_ns},
          {"compute_ns", breakdown.compute_ns},
          {"communication_ns", breakdown.comm_ns},
          {"exposed_communication_ns", breakdown.exposed_comm_ns},
          {"exposed_copy_ns", breakdown.exposed_copy_ns},
          {"idle_ns", breakdown.idle_ns}};
}

}  // namespace

ReportInputs read_report_inputs(const models::ModelOptions& model, const train::ParallelOptions& parallel,
                                const ReportOptions& options) {
  check_report_path(*options.path);
  const auto profile_file = virtual_time::find_profile_file(options.device, "--report-device");
  return {virtual_time::find_profile(options.device, "--report-device"),
          configuration_json(model, parallel, options, {{"--report-device", profile_file}})};
}

ordered_json thinned_steps(const std::vector<ordered_json>& lines, std::int64_t limit) {
  const auto count = static_cast<std::int64_t>(lines.size());
  const std::int64_t stride = ceil_div(count, limit);
  ordered_json kept = ordered_json::array();
  for (std::int64_t i = 0; i < count; ++i) {
    const ordered_json& line = lines[static_cast<std::size_t>(i)];
    if (i % stride == 0 || i + 1 == count || line.contains(log::keys::kHeldOutLoss)) kept.push_back(line);
  }
  return kept;
}

RunReport::RunReport(const train::TrainSections& arguments, const ReportOptions& options, const ReportInputs& inputs,
                     About about)
    : arguments_(arguments), options_(options), inputs_(inputs) {
  json_ = {{"report", "run"},
           {"model", about.model},
           {"parameters", about.parameters},
           {"device", inputs.profile.name},
           {"world_size", arguments.launch.ranks},
           {"mode", about.mode},
           {"micro_batch_size", arguments.schedule.micro_batch_size},
           {"micro_batches", about.micro_batches},
           {"seq_length", arguments.data.seq_length},
           {"warnings", about.warnings}};
}

void RunReport::begin_step(std::int64_t step) {
  if (!recorded_) recorded_ = std::min(step + 1, arguments_.schedule.train_iters - 1);
  if (step == recorded_) recorder_.emplace(device::Device::current(), device::RecorderOptions{.memory = true});
}

void RunReport::end_step(std::int64_t step) {
  if (step != recorded_) return;
  const device::Recording recording = recorder_->recording();
  recorder_.reset();
  const virtual_time::RankRecording rank{0, &recording};
  const virtual_time::TimeModel model(inputs_.profile);
  const virtual_time::VirtualTimes times = virtual_time::resolve({&rank, 1}, model);
  json_["recorded_step"] = step + 1;
  json_["time"] = time_json(recording, times.ranks.front());
  json_["communication"] = to_json(sum_collectives(recording, model));
  json_["host_bytes"] = device::Device::current().host_memory().stats().peak_bytes;
  add_step(json_, {recording, times.ranks.front()});
  for (const WastedPrefetch& wasted : view_schedule(recording).wasted) {
    json_["warnings"].push_back(to_text(wasted));
  }
}

void RunReport::write() const {
  ordered_json json = json_;
  const std::vector<ordered_json> lines = metrics_lines(arguments_.log.metrics_path);
  json["steps_of_run"] = lines.size();
  json["steps"] = thinned_steps(lines);
  json["configuration"] = inputs_.configuration;
  write_report(*options_.path, json);
}

}  // namespace loom::observe
