#include "engine/plan/plan_compare.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/shown_path.h"
#include "engine/core/shown_text.h"
#include "engine/core/units.h"
#include "engine/core/wrapped.h"
#include "engine/observe/schedule_view.h"
#include "engine/plan/plan_output.h"

namespace loom::plan {
namespace {

constexpr std::size_t kIndent = 4;

std::string event_text(const observe::ScheduleEvent& event) {
  std::string text = event.stream.empty() ? event.token : event.stream + " " + event.token;
  if (event.has_group) text += " " + shown_path(event.group);
  return text;
}

std::string head(const char* letter, const NamedEstimate& named) {
  const StepEstimate& plan = named.checked.plan;
  const char* verdict = named.checked.out_of_memory ? "DOES NOT FIT" : "fits";
  return wrapped(fmt::format("{}: {}: {} on {} x {}{}{}, micro-batch {} x {} of {} tokens: {}\n", letter,
                             escaped(named.name), plan.model, plan.world, plan.device, plan.mode.empty() ? "" : ", ",
                             plan.mode, plan.micro_batches, plan.micro_batch, plan.seq_length, verdict),
                 kIndent);
}

std::string tail(const char* letter, const NamedEstimate& named) {
  std::string text;
  for (const std::string& warning : named.checked.plan.warnings) {
    text += wrapped(fmt::format("{}: warning: {}\n", letter, warning), kIndent);
  }
  if (named.checked.out_of_memory) text += fmt::format("\n{}: {}", letter, out_of_memory_text(named.checked));
  return text;
}

std::string order_text(const std::optional<OrderDifference>& found) {
  if (!found) return "\nthe order of events is the same\n";
  const auto shown = [](const std::string& event) { return event.empty() ? "nothing: its step has ended" : event; };
  return wrapped(fmt::format("\nthe order of events differs, first at event {}: {} and {}\n", found->event,
                             shown(found->a), shown(found->b)),
                 kIndent);
}

nlohmann::ordered_json order_json(const std::optional<OrderDifference>& found) {
  if (!found) return {{"same", true}};
  return {{"same", false}, {"event", found->event}, {"a", found->a}, {"b", found->b}};
}

nlohmann::ordered_json plan_json(const NamedEstimate& named) {
  nlohmann::ordered_json json{{"file", named.name}};
  json.update(to_json(named.checked));
  return json;
}

std::optional<OrderDifference> order_of(const ComparedEstimates& compared) {
  return first_order_difference(compared.a.checked.plan.run().recording, compared.b.checked.plan.run().recording);
}

}  // namespace

std::optional<OrderDifference> first_order_difference(const device::Recording& a, const device::Recording& b) {
  const auto events_a = observe::view_schedule(a).events;
  const auto events_b = observe::view_schedule(b).events;
  const auto text_at = [](const std::vector<observe::ScheduleEvent>& events, std::size_t i) {
    return i < events.size() ? event_text(events[i]) : "";
  };
  for (std::size_t i = 0; i < events_a.size() || i < events_b.size(); ++i) {
    OrderDifference difference{.event = i + 1, .a = text_at(events_a, i), .b = text_at(events_b, i)};
    if (difference.a != difference.b) return difference;
  }
  return std::nullopt;
}

std::string to_text(const ComparedEstimates& compared) {
  const auto figures = all_figures(compared.a.checked.plan, compared.b.checked.plan);
  return head("A", compared.a) + head("B", compared.b) + "\n" + figure_table(figures, "A", "B") +
         order_text(order_of(compared)) + tail("A", compared.a) + tail("B", compared.b);
}

nlohmann::ordered_json to_json(const ComparedEstimates& compared) {
  nlohmann::ordered_json json;
  json["a"] = plan_json(compared.a);
  json["b"] = plan_json(compared.b);
  json["figures"] = to_json(all_figures(compared.a.checked.plan, compared.b.checked.plan));
  json["order"] = order_json(order_of(compared));
  return json;
}

std::string to_text(const WhatIfEstimate& what_if) {
  std::string text;
  for (const virtual_time::WhatIf& scaled : what_if.scaled) {
    text += wrapped(fmt::format("what if {} x {:g} ({})\n", scaled.figure, scaled.factor, about(scaled)), kIndent);
  }
  if (!what_if.figures.empty()) text += figure_table(what_if.figures, "as it is", "what if");
  return text + "\n";
}

nlohmann::ordered_json to_json(const WhatIfEstimate& what_if) {
  nlohmann::ordered_json json;
  json["scaled"] = nlohmann::ordered_json::array();
  for (const virtual_time::WhatIf& scaled : what_if.scaled) {
    json["scaled"].push_back({{"figure", scaled.figure}, {"factor", scaled.factor}, {"about", about(scaled)}});
  }
  json["figures"] = to_json(what_if.figures);
  return json;
}

}  // namespace loom::plan
