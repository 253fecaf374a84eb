#include "engine/train/report_run.h"

#include <algorithm>
#include <fstream>

#include "engine/core/error.h"
#include "engine/device/breakdown.h"
#include "engine/train/find_profile.h"
#include "engine/train/report_configuration.h"
#include "engine/train/report_page.h"
#include "engine/train/report_step.h"
#include "sharding/schedule_view.h"

namespace loom::train {
namespace {

using nlohmann::ordered_json;

std::vector<ordered_json> metrics_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<ordered_json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(ordered_json::parse(line));
  if (lines.empty())
    raise<Error>("{}: holds no steps for the report; leave the file in place while the run lasts", path.string());
  return lines;
}

ordered_json time_json(const device::Timeline& timeline, const device::RankTimes& times) {
  const device::Breakdown breakdown = device::break_down(timeline, times, 0, times.end_ns);
  return {{"step_ns", times.end_ns},
          {"compute_ns", breakdown.compute_ns},
          {"communication_ns", breakdown.comm_ns},
          {"exposed_communication_ns", breakdown.exposed_comm_ns},
          {"exposed_copy_ns", breakdown.exposed_copy_ns},
          {"idle_ns", breakdown.idle_ns}};
}

}  // namespace

ReportInputs read_report_inputs(const TrainArguments& arguments) {
  check_report_path(*arguments.report);
  return {find_profile(arguments.report_device, "--report-device"),
          configuration_json(arguments,
                             {{"--report-device", find_profile_file(arguments.report_device, "--report-device")}})};
}

ordered_json thinned_steps(const std::vector<ordered_json>& lines, std::int64_t limit) {
  const auto count = static_cast<std::int64_t>(lines.size());
  const std::int64_t stride = (count + limit - 1) / limit;
  ordered_json kept = ordered_json::array();
  for (std::int64_t i = 0; i < count; ++i) {
    const ordered_json& line = lines[static_cast<std::size_t>(i)];
    if (i % stride == 0 || i + 1 == count || line.contains("held_out_loss")) kept.push_back(line);
  }
  return kept;
}

RunReport::RunReport(const TrainArguments& arguments, const ReportInputs& inputs, About about)
    : arguments_(arguments), inputs_(inputs) {
  json_ = {{"report", "run"},
           {"model", about.model},
           {"parameters", about.parameters},
           {"device", inputs.profile.name},
           {"world_size", arguments.ranks},
           {"mode", about.mode},
           {"micro_batch_size", arguments.micro_batch_size},
           {"micro_batches", about.micro_batches},
           {"seq_length", arguments.seq_length},
           {"warnings", about.warnings}};
}

bool RunReport::records(std::int64_t step) const {
  return step == std::min<std::int64_t>(1, arguments_.train_iters - 1);
}

void RunReport::begin_step() {
  device::Device& device = device::Device::current();
  device.timeline().enable(true);
  recorder_.emplace(device);
}

void RunReport::end_step(std::int64_t step) {
  device::Device& device = device::Device::current();
  device::Timeline& timeline = device.timeline();
  const std::vector<device::MemorySample> memory = recorder_->take();
  recorder_.reset();
  timeline.enable(false);
  const device::RankTimeline rank{0, &timeline};
  const device::VirtualTimes times = device::resolve({&rank, 1}, device::TimeModel(inputs_.profile));
  json_["recorded_step"] = step + 1;
  json_["time"] = time_json(timeline, times.ranks.front());
  add_step(json_, {timeline, times.ranks.front(), memory});
  for (const sharding::VainPrefetch& vain : sharding::view_schedule(device.trace(), device.memory().stats()).vain) {
    json_["warnings"].push_back(sharding::to_text(vain));
  }
  timeline.clear();
}

void RunReport::write() const {
  ordered_json json = json_;
  const std::vector<ordered_json> lines = metrics_lines(arguments_.metrics_path);
  json["steps_of_run"] = lines.size();
  json["steps"] = thinned_steps(lines);
  json["configuration"] = inputs_.configuration;
  write_report(*arguments_.report, json);
}

}  // namespace loom::train
