#include "engine/plan/plan_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/units.h"
#include "sharding/memory.h"

namespace loom::plan {
namespace {

constexpr std::array<std::string_view, 6> kUnits{"bytes", "ns", "per_s", "share", "count", "money"};

// Rows of two plans that belong together by their keys, in the order of the first, then those of the second alone.
template <class Row, class Key, class Use>
void for_each_pair(const std::vector<Row>& a, const std::vector<Row>& b, Key key, Use use) {
  const auto find = [&](const std::vector<Row>& rows, const Row& wanted) {
    const auto found = std::ranges::find_if(rows, [&](const Row& row) { return key(row) == key(wanted); });
    return found == rows.end() ? Row{} : *found;
  };
  for (const Row& row : a) use(key(row), row, find(b, row));
  for (const Row& row : b) {
    const bool in_both = std::ranges::any_of(a, [&](const Row& other) { return key(other) == key(row); });
    if (!in_both) use(key(row), Row{}, row);
  }
}

class Figures {
 public:
  Figures(const StepEstimate& a, const StepEstimate& b) : a_(a), b_(b) {}

  void add_main() {
    add("step", "step", FigureKind::kTime, [](const StepEstimate& p) { return p.time.step_ns; });
    add("step", "tokens", FigureKind::kCount, [](const StepEstimate& p) { return p.throughput.tokens; });
    add("step", "tokens/s", FigureKind::kRate, [](const StepEstimate& p) { return p.throughput.tokens_per_s; });
    add("step", "tokens/s per device", FigureKind::kRate,
        [](const StepEstimate& p) { return p.throughput.tokens_per_s_per_device; });
    add("step", "MFU", FigureKind::kShare, [](const StepEstimate& p) { return p.throughput.mfu; });
    add_training();
    add("memory", "capacity", FigureKind::kBytes, [](const StepEstimate& p) { return p.memory.capacity_bytes; });
    add("memory", "peak reserved", FigureKind::kBytes,
        [](const StepEstimate& p) { return p.memory.peak_reserved_bytes; });
    add("memory", "peak allocated", FigureKind::kBytes,
        [](const StepEstimate& p) { return p.memory.peak_allocated_bytes; });
  }

  void add_details() {
    add("memory", "between steps", FigureKind::kBytes,
        [](const StepEstimate& p) { return p.memory.steady_allocated_bytes; });
    add("memory", "on the host", FigureKind::kBytes, [](const StepEstimate& p) { return p.memory.host_bytes; });
    add("memory", "cache flushes", FigureKind::kCount, [](const StepEstimate& p) { return p.memory.cache_flushes; });
    for_each_pair(
        a_.memory.phases, b_.memory.phases, [](const PhaseMemory& p) { return p.phase; },
        [this](const std::string& phase, const PhaseMemory& a, const PhaseMemory& b) { add_memory(phase, a, b); });
    add_time();
    for_each_pair(
        a_.communication, b_.communication,
        [](const CommunicationEstimate& c) {
          return fmt::format("{} over {} ranks, {}", c.collective, c.ranks, c.link);
        },
        [this](const std::string& kind, const CommunicationEstimate& a, const CommunicationEstimate& b) {
          put(kind, "count", FigureKind::kCount, a.count, b.count);
          put(kind, "received", FigureKind::kBytes, a.received_bytes, b.received_bytes);
          put(kind, "alone on the links", FigureKind::kTime, a.time_ns, b.time_ns);
        });
    for_each_pair(
        a_.volume, b_.volume, [](const sharding::AxisVolume& v) { return v.axis; },
        [this](const std::string& axis, const sharding::AxisVolume& a, const sharding::AxisVolume& b) {
          put("received over an axis", axis, FigureKind::kBytes, a.received_bytes, b.received_bytes);
        });
  }

  std::vector<FigurePair> take() {
    std::erase_if(figures_, [](const FigurePair& pair) { return pair.a == 0 && pair.b == 0; });
    return std::move(figures_);
  }

 private:
  template <class Number>
  void put(std::string part, std::string figure, FigureKind kind, Number a, Number b) {
    figures_.push_back({std::move(part), std::move(figure), kind, static_cast<double>(a), static_cast<double>(b)});
  }
  template <class Of>
  void add(const char* part, const char* figure, FigureKind kind, Of of) {
    put(part, figure, kind, of(a_), of(b_));
  }

  void add_training() {
    if (!a_.training || !b_.training) return;
    add("training", "days", FigureKind::kCount, [](const StepEstimate& p) { return p.training->days; });
    add("training", "device hours", FigureKind::kCount, [](const StepEstimate& p) { return p.training->device_hours; });
    add("training", "price", FigureKind::kMoney, [](const StepEstimate& p) { return p.training->price.value_or(0); });
  }

  void add_memory(const std::string& phase, const PhaseMemory& a, const PhaseMemory& b) {
    const std::string part = "memory in " + phase;
    put(part, "peak allocated", FigureKind::kBytes, a.peak_allocated_bytes, b.peak_allocated_bytes);
    for (const device::MemCategory c : sharding::kMemCategories) {
      put(part, std::string(c.name()), FigureKind::kBytes, a.by_category_at_peak[c], b.by_category_at_peak[c]);
    }
    put(part, "at the end", FigureKind::kBytes, a.end_allocated_bytes, b.end_allocated_bytes);
  }

  void add_time() {
    const auto part = [this](const char* figure, std::int64_t virtual_time::Breakdown::*of) {
      put("time", figure, FigureKind::kTime, a_.time.breakdown.*of, b_.time.breakdown.*of);
    };
    part("compute", &virtual_time::Breakdown::compute_ns);
    part("exposed communication", &virtual_time::Breakdown::exposed_comm_ns);
    part("exposed copies", &virtual_time::Breakdown::exposed_copy_ns);
    part("idle", &virtual_time::Breakdown::idle_ns);
    part("communication, hidden or not", &virtual_time::Breakdown::comm_ns);
    add("time", "if the host cost nothing", FigureKind::kTime,
        [](const StepEstimate& p) { return p.time.device_bound_ns; });
    for_each_pair(
        a_.time.phases, b_.time.phases, [](const PhaseTime& p) { return p.phase; },
        [this](const std::string& phase, const PhaseTime& a, const PhaseTime& b) {
          put("time by phase", phase, FigureKind::kTime, a.compute_ns, b.compute_ns);
        });
    for_each_pair(
        a_.time.exposed, b_.time.exposed, [](const virtual_time::AxisTime& x) { return x.axis; },
        [this](const std::string& axis, const virtual_time::AxisTime& a, const virtual_time::AxisTime& b) {
          put("exposed by axis", axis, FigureKind::kTime, a.exposed_ns, b.exposed_ns);
        });
  }

  const StepEstimate& a_;
  const StepEstimate& b_;
  std::vector<FigurePair> figures_;
};

// A unit for all figures of a part and kind.
Unit unit_of(std::span<const FigurePair> figures, const FigurePair& of) {
  double largest = 0;
  for (const FigurePair& pair : figures) {
    if (pair.part == of.part && pair.kind == of.kind) largest = std::max({largest, pair.a, pair.b});
  }
  switch (of.kind) {
    case FigureKind::kBytes:
      return unit_of_bytes(std::llround(largest));
    case FigureKind::kTime:
      return unit_of_time(std::llround(largest));
    case FigureKind::kShare:
      return {"%", 0.01, 1};
    case FigureKind::kRate:
      return {"", 1, 0};
    case FigureKind::kMoney:
      return {"", 1, 2};
    case FigureKind::kCount:
      break;
  }
  const bool whole = of.a == std::floor(of.a) && of.b == std::floor(of.b);
  return {"", 1, whole ? 0 : 2};
}

std::string columns(std::string_view title, std::string_view a, std::string_view b, std::string_view difference,
                    std::string_view ratio) {
  return fmt::format("{:<42}{:>16}{:>16}{:>15}{:>9}\n", title, a, b, difference, ratio);
}

std::string line(const FigurePair& pair, const Unit& unit) {
  const auto text = [&](double value) { return figure(value / unit.size, unit.decimals); };
  const auto ratio = pair.ratio();
  return columns(fmt::format("  {}{}{}", pair.figure, unit.name.empty() ? "" : ", ", unit.name), text(pair.a),
                 text(pair.b), text(pair.b - pair.a), ratio ? figure(*ratio, 3) : "");
}

}  // namespace

std::vector<FigurePair> main_figures(const StepEstimate& a, const StepEstimate& b) {
  Figures figures(a, b);
  figures.add_main();
  return figures.take();
}

std::vector<FigurePair> all_figures(const StepEstimate& a, const StepEstimate& b) {
  Figures figures(a, b);
  figures.add_main();
  figures.add_details();
  return figures.take();
}

std::string figure_table(std::span<const FigurePair> figures, std::string_view a, std::string_view b) {
  std::string text = columns("", a, b, "difference", "ratio");
  const std::string* part = nullptr;
  for (const FigurePair& pair : figures) {
    if (part == nullptr || *part != pair.part) text += pair.part + "\n";
    part = &pair.part;
    text += line(pair, unit_of(figures, pair));
  }
  return text;
}

nlohmann::ordered_json to_json(std::span<const FigurePair> figures) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const FigurePair& pair : figures) {
    nlohmann::ordered_json& row = json.emplace_back();
    row = {{"part", pair.part}, {"figure", pair.figure}, {"unit", kUnits[static_cast<std::size_t>(pair.kind)]},
           {"a", pair.a},       {"b", pair.b},           {"difference", pair.b - pair.a},
           {"ratio", nullptr}};
    if (const auto ratio = pair.ratio()) row["ratio"] = *ratio;
  }
  return json;
}

}  // namespace loom::plan
