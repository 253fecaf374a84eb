#include "engine/plan/plan_stages.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/units.h"
#include "engine/device/recording.h"
#include "engine/train/schedule/pipeline_time.h"
#include "engine/virtual_time/breakdown.h"

namespace loom::plan {
namespace {

using device::Entry;
using device::EntryKind;

bool waits_for_message(const device::Recording& recording, const Entry& entry) {
  if (entry.kind != EntryKind::kStreamWait || entry.stream != device::StreamId::kCompute) return false;
  return is_message(recording.entry(entry.other));
}

}  // namespace

bool is_message(const Entry& entry) {
  return entry.kind == EntryKind::kCollective && entry.collective == device::CollectiveKind::kMessage;
}

void measure_time(StageEstimate& stage, const device::Recording& recording, const virtual_time::RankTimes& times,
                  std::int64_t step_ns) {
  const virtual_time::Breakdown breakdown = virtual_time::break_down(recording, times, 0, step_ns);
  stage.compute_ns = breakdown.compute_ns;
  stage.bubble_ns = step_ns - times.end_ns;
  std::int64_t exposed = 0;
  for (std::size_t i = 0; i < recording.entries.size(); ++i) {
    const Entry& entry = recording.entries[i];
    if (!waits_for_message(recording, entry)) continue;
    const virtual_time::EntryTime& wait = times.entries[i];
    const std::int64_t sent = times.entries[static_cast<std::size_t>(entry.other)].start;
    const std::int64_t moving = std::clamp(sent, wait.start, wait.end);
    stage.bubble_ns += moving - wait.start;
    exposed += wait.end - moving;
  }
  stage.exposed_message_ns = exposed;
}

StageEstimate describe_rank(const train::PipelinePlan& plan, const train::PipelineFigures& figures,
                            std::int64_t place) {
  StageEstimate rank;
  std::vector<std::string> stages;
  for (const sharding::StageLayout& stage : plan.stages) {
    if (stage.rank == place) stages.push_back(fmt::format("stage {}: {}", stage.stage, train::content_of(stage)));
  }
  rank.content = fmt::to_string(fmt::join(stages, "; "));
  rank.in_flight = figures.peak_activations.at(static_cast<std::size_t>(place));
  return rank;
}

void add_up(PipelineEstimate& pipeline, std::int64_t step_ns) {
  std::int64_t bubble = 0;
  for (const StageEstimate& rank : pipeline.ranks) bubble += rank.bubble_ns;
  pipeline.bubble =
      static_cast<double>(bubble) /
      (static_cast<double>(step_ns) * static_cast<double>(std::max<std::size_t>(1, pipeline.ranks.size())));
}

std::string to_text(const PipelineEstimate& pipeline, std::int64_t step_ns) {
  std::int64_t most = 0;
  for (const StageEstimate& rank : pipeline.ranks) most = std::max(most, rank.peak_reserved_bytes);
  const Unit bytes = unit_of_bytes(most);
  const Unit time = unit_of_time(step_ns);
  std::string text = fmt::format("\npipeline {}: bubble {} % of the time of all ranks\n", pipeline.schedule,
                                 figure(100 * pipeline.bubble, 1));
  text += fmt::format("  {:>4}{:>11}{:>15}{:>12}{:>9}{:>10}  {}\n", "rank", "in flight",
                      fmt::format("reserved, {}", bytes.name), fmt::format("compute, {}", time.name), "bubble",
                      "messages", "holds");
  for (const StageEstimate& rank : pipeline.ranks) {
    text += fmt::format("  {:>4}{:>11}{:>15}{:>12}{:>9}{:>10}  {}\n", rank.rank, rank.in_flight,
                        figure(rank.peak_reserved_bytes, bytes), figure(rank.compute_ns, time),
                        figure(rank.bubble_ns, time), figure(rank.exposed_message_ns, time), rank.content);
  }
  return text;
}

nlohmann::ordered_json to_json(const PipelineEstimate& pipeline) {
  nlohmann::ordered_json json{{"schedule", pipeline.schedule}, {"bubble", pipeline.bubble}};
  json["ranks"] = nlohmann::ordered_json::array();
  for (const StageEstimate& rank : pipeline.ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"stages", rank.content},
                             {"parameters", rank.parameters},
                             {"in_flight", rank.in_flight},
                             {"peak_allocated_bytes", rank.peak_allocated_bytes},
                             {"peak_reserved_bytes", rank.peak_reserved_bytes},
                             {"compute_ns", rank.compute_ns},
                             {"bubble_ns", rank.bubble_ns},
                             {"exposed_message_ns", rank.exposed_message_ns}});
  }
  return json;
}

}  // namespace loom::plan
