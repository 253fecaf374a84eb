#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/shown_text.h"
#include "engine/core/units.h"
#include "engine/core/wrapped.h"
#include "engine/explain/snapshot_explanation.h"

namespace loom::explain {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kIndent = 4;
constexpr std::size_t kMostUnplanned = 8;
constexpr std::size_t kMostTried = 5;

std::string line(const std::string& text) { return wrapped(text + "\n", kIndent); }

std::string blocks_text(std::int64_t count) { return fmt::format("{} block{}", count, count == 1 ? "" : "s"); }

std::string_view status_of(const LineupRow& row) {
  if (row.more_blocks > 0) return "larger";
  if (row.found_blocks == row.planned_blocks) return "found";
  return row.found_blocks == 0 ? "missing" : "part is missing";
}

// --- text

std::string totals_text(const SnapshotPeak& real, const SnapshotPeak& plan) {
  const std::int64_t largest = std::max(real.most_reserved_bytes, plan.most_reserved_bytes);
  const Unit unit = unit_of_bytes(largest);
  std::string text =
      fmt::format("{:<44}{:>14}{:>14}{:>14}\n", fmt::format("  ({})", unit.name), "snapshot", "plan", "difference");
  const auto row = [&](std::string_view name, std::int64_t a, std::int64_t b) {
    text += fmt::format("  {:<42}{:>14}{:>14}{:>14}\n", name, figure(a, unit), figure(b, unit),
                        fmt::format("{}{}", a < b ? "-" : "+", figure(a < b ? b - a : a - b, unit)));
  };
  row("active at the peak", real.active_bytes, plan.active_bytes);
  row("of it freed, waits for another stream", real.pending_bytes, plan.pending_bytes);
  row("reserved then", real.reserved_bytes, plan.reserved_bytes);
  row("of it not active: fragments and cache", real.unused_bytes(), plan.unused_bytes());
  row("reserved at most", real.most_reserved_bytes, plan.most_reserved_bytes);
  return text;
}

std::string row_text(const LineupRow& row) {
  std::string text =
      fmt::format("  {:<16}{:<30}{:>12}{:>12}  {}", row.category, row.group.empty() ? "-" : shown_text(row.group),
                  memory_text(row.planned_bytes), memory_text(row.found_bytes + row.more_bytes), status_of(row));
  if (row.more_blocks > 0) text += fmt::format(", {} more", memory_text(row.more_bytes));
  if (row.found_blocks < row.planned_blocks) {
    text += fmt::format(", {} of {} found", row.found_blocks, blocks_text(row.planned_blocks));
  }
  return line(text);
}

std::string rows_text(const Lineup& lineup) {
  std::string text = "\nby size, blocks that are active at the peak:\n";
  text += fmt::format("  {:<16}{:<30}{:>12}{:>12}\n", "category", "group", "plan", "snapshot");
  for (const LineupRow& row : lineup.rows) text += row_text(row);
  text += fmt::format("  {:<46}{:>12}{:>12}\n", "of no size of the plan", "", memory_text(lineup.unplanned_bytes));
  return text;
}

std::string unplanned_text(const Lineup& lineup) {
  if (lineup.unplanned.empty()) return "";
  std::string text = "\nlargest of no size of the plan:\n";
  for (std::size_t i = 0; i < std::min(kMostUnplanned, lineup.unplanned.size()); ++i) {
    const UnplannedBlocks& blocks = lineup.unplanned[i];
    text += line(fmt::format("  {} of {}{}{}", blocks_text(blocks.count), memory_text(blocks.bytes),
                             blocks.place.empty() ? "" : ", allocated in ", blocks.place));
  }
  if (lineup.unplanned.size() > kMostUnplanned) {
    text += fmt::format("  and {} other sizes or places\n", lineup.unplanned.size() - kMostUnplanned);
  }
  return text;
}

std::string tried_text(const SnapshotExplanation& e) {
  std::string text = line(fmt::format("\nmissing, more and of no planned size: {}", memory_text(e.lineup.distance())));
  if (e.agrees) return text + line("the plan explains the snapshot: they differ by at most a hundredth of the peak");
  if (e.tried.empty()) {
    return text + line("no other setting was tried: the job has no fsdp2_config.yaml whose keys could differ");
  }
  text += "with one setting of the job otherwise:\n";
  std::size_t shown = 0;
  for (const TriedSetting& setting : e.tried) {
    if (!setting.refused.empty() || shown++ == kMostTried) break;
    text += line(fmt::format("  {}: {}; active at the peak {}", setting.change, memory_text(setting.distance_bytes),
                             memory_text(setting.active_bytes)));
  }
  if (e.explains) {
    return text + line(fmt::format("nearest: {}; look whether the run had it so", e.tried.front().change));
  }
  return text + line(fmt::format("none of {} settings explains the difference", e.tried.size()));
}

std::string pending_text(const SnapshotPeak& real) {
  if (real.most_pending_bytes == 0) return "";
  return line(
      fmt::format("up to {} were freed and waited for another stream: record_stream, or a prefetch that was "
                  "issued far ahead, keeps them",
                  memory_text(real.most_pending_bytes)));
}

std::string refused_text(const SnapshotPeak& real) {
  if (real.out_of_memory == 0) return "";
  return line(fmt::format("{} allocation{} failed, the last of {}", real.out_of_memory,
                          real.out_of_memory == 1 ? "" : "s", memory_text(real.refused_bytes)));
}

// --- JSON

Json to_json(const SnapshotPeak& peak) {
  return {{"active_bytes", peak.active_bytes},
          {"pending_bytes", peak.pending_bytes},
          {"reserved_bytes", peak.reserved_bytes},
          {"unused_bytes", peak.unused_bytes()},
          {"most_reserved_bytes", peak.most_reserved_bytes},
          {"most_pending_bytes", peak.most_pending_bytes}};
}

Json to_json(const LineupRow& row) {
  return {{"category", row.category},           {"group", row.group},
          {"status", status_of(row)},           {"planned_blocks", row.planned_blocks},
          {"planned_bytes", row.planned_bytes}, {"found_blocks", row.found_blocks},
          {"found_bytes", row.found_bytes},     {"more_blocks", row.more_blocks},
          {"more_bytes", row.more_bytes}};
}

Json to_json(const TriedSetting& setting) {
  Json json = {{"change", setting.change}};
  if (!setting.refused.empty()) {
    json["refused"] = setting.refused;
    return json;
  }
  json["active_bytes"] = setting.active_bytes;
  json["distance_bytes"] = setting.distance_bytes;
  return json;
}

Json to_json(const UnplannedBlocks& blocks) {
  return {{"bytes", blocks.bytes}, {"count", blocks.count}, {"place", blocks.place}};
}

template <class Items>
Json list_of(const Items& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(to_json(item));
  return list;
}

}  // namespace

std::string to_text(const SnapshotExplanation& e) {
  std::string text =
      line(fmt::format("{}: device {}, {} event{}; beside the plan of {}, rank {} on {}", escaped(e.file),
                       e.real.device, e.real.events, e.real.events == 1 ? "" : "s", e.model, e.rank, e.device));
  if (e.real.events == 0) text += line("without events: what is active at the end stands beside the plan's peak");
  return text + totals_text(e.real, e.lineup.planned) + refused_text(e.real) + pending_text(e.real) +
         rows_text(e.lineup) + unplanned_text(e.lineup) + tried_text(e);
}

Json to_json(const SnapshotExplanation& e) {
  return {{"snapshot", e.file},
          {"snapshot_device", e.real.device},
          {"events", e.real.events},
          {"out_of_memory", e.real.out_of_memory},
          {"refused_bytes", e.real.refused_bytes},
          {"model", e.model},
          {"device", e.device},
          {"rank", e.rank},
          {"real", to_json(e.real)},
          {"planned", to_json(e.lineup.planned)},
          {"rows", list_of(e.lineup.rows)},
          {"unplanned", list_of(e.lineup.unplanned)},
          {"missing_bytes", e.lineup.missing_bytes},
          {"more_bytes", e.lineup.more_bytes},
          {"unplanned_bytes", e.lineup.unplanned_bytes},
          {"distance_bytes", e.lineup.distance()},
          {"agrees", e.agrees},
          {"tried", list_of(e.tried)},
          {"nearest", e.explains ? Json(e.tried.front().change) : Json(nullptr)}};
}

}  // namespace loom::explain
