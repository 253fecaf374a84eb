#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/shown_text.h"
#include "engine/core/wrapped.h"
#include "engine/explain/trace_explanation.h"

namespace loom::explain {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kIndent = 4;
constexpr std::size_t kMostTried = 5;
constexpr std::size_t kAround = 3;  // events shown from the first difference on
constexpr double kMs = 1e-3;        // of a microsecond

std::string line(const std::string& text) { return wrapped(text + "\n", kIndent); }

// --- text

std::string ratio_text(double real, double plan) { return plan > 0 ? fmt::format("{:.2f}", real / plan) : "-"; }

std::string row_text(std::string_view name, double real_us, double plan_us) {
  return fmt::format("  {:<42}{:>14.2f}{:>14.2f}{:>14}\n", name, kMs * real_us, kMs * plan_us,
                     ratio_text(real_us, plan_us));
}

std::string totals_text(const StepFigures& real, const StepFigures& plan) {
  std::string text = fmt::format("{:<44}{:>14}{:>14}{:>14}\n", "  (ms)", "trace", "plan", "trace / plan");
  text += row_text("step", real.step_us, plan.step_us);
  text += row_text("device busy, but for collectives", real.busy_us, plan.busy_us);
  text += row_text("device idle, or in collectives alone", real.step_us - real.busy_us, plan.step_us - plan.busy_us);
  for (std::size_t i = 0; i < kStepPhases; ++i) {
    text += row_text(name_of(static_cast<StepPhase>(i)), real.by_phase[i], plan.by_phase[i]);
  }
  for (std::size_t i = 0; i < kWorkClasses; ++i) {
    text += row_text(name_of(static_cast<WorkClass>(i)), real.by_class[i], plan.by_class[i]);
  }
  return text;
}

std::set<std::string> groups_of(const TraceExplanation& e) {
  std::set<std::string> groups;
  for (const auto* figures : {&e.real, &e.planned}) {
    for (const auto& [group, times] : figures->by_group) groups.insert(group);
  }
  return groups;
}

std::array<double, 2> times_of(const StepFigures& figures, const std::string& group) {
  const auto found = figures.by_group.find(group);
  return found == figures.by_group.end() ? std::array<double, 2>{} : found->second;
}

std::string groups_text(const TraceExplanation& e) {
  std::string text = "\noperators of groups, ms:\n";
  text +=
      fmt::format("  {:<34}{:>20}{:>20}{:>20}\n", "", "forward trace, plan", "backward trace, plan", "trace / plan");
  for (const std::string& group : groups_of(e)) {
    const auto real = times_of(e.real, group), plan = times_of(e.planned, group);
    text += fmt::format("  {:<34}{:>11.2f}{:>9.2f}{:>11.2f}{:>9.2f}{:>20}\n", shown_text(group), kMs * real[0],
                        kMs * plan[0], kMs * real[1], kMs * plan[1], ratio_text(real[0] + real[1], plan[0] + plan[1]));
  }
  return text;
}

std::string events_from(const std::vector<std::string>& order, std::size_t begin) {
  if (begin >= order.size()) return "its end";
  std::string text;
  for (std::size_t i = begin; i < std::min(begin + kAround, order.size()); ++i) {
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", shown_text(order[i]));
  }
  return text;
}

std::string tried_text(const TraceExplanation& e) {
  if (e.tried.empty()) {
    return line("no other setting was tried: the job has no fsdp2_config.yaml whose keys could differ");
  }
  std::string text = "with one setting of the job otherwise, events that differ:\n";
  std::size_t shown = 0;
  for (const TriedOrder& setting : e.tried) {
    if (!setting.refused.empty() || shown++ == kMostTried) break;
    text += line(fmt::format("  {}: {}", setting.change, setting.distance));
  }
  if (e.explains) {
    return text + line(fmt::format("nearest: {}; look whether the run had it so", e.tried.front().change));
  }
  return text + line(fmt::format("none of {} settings explains the difference", e.tried.size()));
}

std::string order_text(const TraceExplanation& e) {
  if (!e.has_order()) {
    return line(
        "\nthe trace has no annotations of FSDP2, so there is no order to compare; profile with "
        "ProfilerActivity.CPU");
  }
  std::string text = "\norder of FSDP on the host (AG: all-gather, W: waited for, RS: reduction):\n";
  if (e.order_distance == 0) return text + line(fmt::format("  equal to the plan's, {} events", e.real.order.size()));
  const std::size_t at = e.first_difference();
  text += line(fmt::format("  {} of {} events differ from the plan's {}; first event {}: the trace has {}, the plan {}",
                           e.order_distance, e.real.order.size(), e.planned.order.size(), at + 1,
                           events_from(e.real.order, at), events_from(e.planned.order, at)));
  if (e.differs_in_root()) {
    return text +
           line(
               "  they differ in the root alone: where the run computes the loss inside the model, as transformers "
               "does with labels, add --loss-in-model to the job");
  }
  return text + tried_text(e);
}

// --- JSON

Json to_json(const StepFigures& figures) {
  Json json = {{"step_us", figures.step_us}, {"busy_us", figures.busy_us}, {"works", figures.works}};
  for (std::size_t i = 0; i < kStepPhases; ++i) {
    json["phases"].push_back({{"phase", name_of(static_cast<StepPhase>(i))}, {"us", figures.by_phase[i]}});
  }
  for (std::size_t i = 0; i < kWorkClasses; ++i) {
    json["classes"].push_back({{"class", name_of(static_cast<WorkClass>(i))}, {"us", figures.by_class[i]}});
  }
  json["groups"] = Json::array();
  for (const auto& [group, times] : figures.by_group) {
    json["groups"].push_back({{"group", group}, {"forward_us", times[0]}, {"backward_us", times[1]}});
  }
  json["order"] = figures.order;
  return json;
}

Json to_json(const TriedOrder& setting) {
  Json json = {{"change", setting.change}};
  if (setting.refused.empty()) {
    json["differing_events"] = setting.distance;
  } else {
    json["refused"] = setting.refused;
  }
  return json;
}

}  // namespace

std::string to_text(const TraceExplanation& e) {
  return line(fmt::format("{}: {} kernels and copies of a step; beside the plan of {}, rank {} on {}", escaped(e.file),
                          e.real.works, e.model, e.rank, e.device)) +
         totals_text(e.real, e.planned) + groups_text(e) + order_text(e);
}

Json to_json(const TraceExplanation& e) {
  Json json = {{"trace", e.file},
               {"model", e.model},
               {"device", e.device},
               {"rank", e.rank},
               {"real", to_json(e.real)},
               {"planned", to_json(e.planned)},
               {"differing_events", e.has_order() ? Json(e.order_distance) : Json(nullptr)},
               {"tried", Json::array()}};
  for (const TriedOrder& setting : e.tried) json["tried"].push_back(to_json(setting));
  json["nearest"] = e.explains ? Json(e.tried.front().change) : Json(nullptr);
  return json;
}

}  // namespace loom::explain
