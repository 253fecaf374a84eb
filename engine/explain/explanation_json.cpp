#include <nlohmann/json.hpp>

#include "engine/explain/explanation.h"

namespace loom::explain {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const SeenCollective& seen) {
  return {{"op", seen.op}, {"numel_in", or_null(seen.numel_in)}, {"numel_out", or_null(seen.numel_out)}};
}

Json to_json(const PlannedCollective& planned) {
  return {{"op", planned.op},
          {"group", planned.of_group ? Json(planned.subject) : Json(nullptr)},
          {"phase", planned.phase},
          {"micro_batch", planned.micro_batch},
          {"bytes", planned.bytes},
          {"numel_in", or_null(planned.numel_in())},
          {"numel_out", or_null(planned.numel_out())},
          {"text", to_text(planned)}};
}

Json to_json(const std::vector<PlannedCollective>& list) {
  Json json = Json::array();
  for (const PlannedCollective& planned : list) json.push_back(to_json(planned));
  return json;
}

Json to_json(const RankState& rank) {
  return {{"rank", rank.rank},
          {"last_enqueued", or_null(rank.last_enqueued)},
          {"last_completed", or_null(rank.last_completed)}};
}

Json to_json(const OtherCollective& other) {
  return {{"rank", other.rank}, {"seq", other.seq}, {"own", to_json(other.own)}, {"most", to_json(other.most)}};
}

Json to_json(const OutOfOrder& found) {
  return {{"rank", found.other.rank},
          {"seq", found.other.seq},
          {"issued", found.issued ? to_json(*found.issued) : Json(nullptr)},
          {"ahead", found.ahead},
          {"several", found.several},
          {"skipped", to_json(found.skipped)}};
}

Json to_json(const HangPlace& place) {
  Json out_of_order = Json::array();
  for (const OutOfOrder& found : place.out_of_order) out_of_order.push_back(to_json(found));
  return {{"axis", place.order.axis},
          {"ranks", place.order.ranks},
          {"collectives_per_step", place.order.step.size()},
          {"reported", place.reported},
          {"agreeing", place.agreeing},
          {"offsets", place.offsets},
          {"step", place.step},
          {"candidates", to_json(place.candidates)},
          {"out_of_order", out_of_order}};
}

Json to_json(const ExplainedHang& explained) {
  const Hang& hang = explained.hang;
  Json ranks = Json::array(), others = Json::array();
  for (const RankState& rank : hang.ranks) ranks.push_back(to_json(rank));
  for (const OtherCollective& other : hang.others) others.push_back(to_json(other));
  return {{"group", hang.group},
          {"seq", hang.waited < 0 ? Json(nullptr) : Json(hang.waited)},
          {"collective", hang.collective ? to_json(*hang.collective) : Json(nullptr)},
          {"timeout_ms", hang.timeout_ms},
          {"size", or_null(hang.size)},
          {"ranks", ranks},
          {"silent", hang.silent},
          {"behind", hang.behind},
          {"others", others},
          {"place", explained.place ? to_json(*explained.place) : Json(nullptr)}};
}

Json to_json(const PlacedAllocation& placed) {
  return {{"what", placed.place.what},
          {"phase", placed.place.phase},
          {"micro_batch", placed.place.micro_batch},
          {"stage", placed.place.stage < 0 ? Json(nullptr) : Json(placed.place.stage)},
          {"group", placed.place.group},
          {"module", placed.place.module},
          {"bytes", placed.bytes},
          {"segment_bytes", placed.segment_bytes},
          {"allocated_before_bytes", placed.allocated_before_bytes},
          {"step", placed.step}};
}

Json to_json(const MemoryPlace& place) {
  Json places = Json::array(), changes = Json::array();
  for (const PlacedAllocation& placed : place.places) places.push_back(to_json(placed));
  for (const FittingChange& change : place.changes) {
    changes.push_back(
        {{"change", change.change}, {"peak_reserved_bytes", change.peak_reserved_bytes}, {"step_ns", change.step_ns}});
  }
  return {{"size_matches", place.size_matches},
          {"by_trace", place.by_trace},
          {"by_traceback", place.by_traceback},
          {"places", places},
          {"peak_allocated_bytes", place.peak_allocated_bytes},
          {"peak_reserved_bytes", place.peak_reserved_bytes},
          {"step_ns", place.step_ns},
          {"beyond_plan_bytes", place.beyond_plan_bytes},
          {"limit_bytes", or_null(place.limit_bytes)},
          {"changes", changes}};
}

Json to_json(const ExplainedMemory& memory) {
  const auto& text = std::get<OutOfMemory>(memory.report.what);
  return {{"line", memory.report.line},
          {"rank", or_null(memory.report.speaker.rank)},
          {"ranks", memory.ranks},
          {"texts", memory.texts},
          {"fragmented", is_fragmented(text)},
          {"capacity_bytes", or_null(capacity_of(text))},
          {"place", memory.place ? to_json(*memory.place) : Json(nullptr)}};
}

Json to_json(const TracedRank& rank) {
  return {
      {"rank", rank.rank}, {"pass", rank.pass}, {"event", rank.event}, {"phase", rank.phase}, {"group", rank.group}};
}

Json to_json(const TraceFault& fault, const ExplainedTrace& trace) {
  const auto at = trace.batch_of(fault.pass);
  return {{"rank", fault.rank},
          {"kind", fault.skipped ? "skipped" : "stopped"},
          {"inside", fault.inside},
          {"pass", fault.pass},
          {"step", at ? Json(at->step) : Json(nullptr)},
          {"micro_batch", at ? Json(at->micro_batch) : Json(nullptr)},
          {"phase", fault.phase},
          {"group", fault.group},
          {"instead", fault.instead},
          {"decided_by", fault.decided_by}};
}

Json to_json(const ExplainedTrace& trace) {
  Json ranks = Json::array(), faults = Json::array();
  for (const TracedRank& rank : trace.finding.ranks) ranks.push_back(to_json(rank));
  for (const TraceFault& fault : trace.finding.faults) faults.push_back(to_json(fault, trace));
  return {{"cut", trace.is_cut}, {"ranks", ranks}, {"faults", faults}, {"unplanned", trace.unplanned}};
}

}  // namespace

nlohmann::ordered_json to_json(const Explanation& explanation) {
  Json texts = Json::array(), hangs = Json::array();
  for (const ErrorReport& report : explanation.texts.reports) texts.push_back(to_json(report));
  for (const ExplainedHang& hang : explanation.hangs) hangs.push_back(to_json(hang));
  return {{"source", explanation.source},
          {"lines", explanation.texts.lines},
          {"left_out", explanation.texts.left_out},
          {"texts", texts},
          {"memory", explanation.memory ? to_json(*explanation.memory) : Json(nullptr)},
          {"notes", explanation.notes},
          {"hangs", hangs},
          {"trace", explanation.trace ? to_json(*explanation.trace) : Json(nullptr)}};
}

}  // namespace loom::explain
