// Two plans of the same command line with two files, and a plan beside the same with scaled figures of the device.
//
// Order    of the events of a step as --print-schedule prints them (observe/schedule_view.h): stream, event, group.
// Text     at most kTextColumns a line.
// Threads  safe from any number of threads.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan_figures.h"
#include "engine/plan/plan_search.h"
#include "engine/virtual_time/what_if.h"

namespace loom::plan {

struct NamedEstimate {
  std::string name;  // the file that is compared
  CheckedEstimate checked;
};

struct ComparedEstimates {
  NamedEstimate a;
  NamedEstimate b;

  bool fits() const { return !a.checked.out_of_memory && !b.checked.out_of_memory; }
};

// The first event, counted from 1, where two steps issue something else; none if their orders are the same.
struct OrderDifference {
  std::size_t event = 0;
  std::string a;  // "gather AG model.layers.0"; empty: this step has ended
  std::string b;
};
std::optional<OrderDifference> first_order_difference(const device::Recording& a, const device::Recording& b);

std::string to_text(const ComparedEstimates& compared);
// {"a": {"file", a plan ...}, "b": {...}, "figures": [...], "order": {...}}
nlohmann::ordered_json to_json(const ComparedEstimates& compared);

// A plan of a device with scaled figures.
struct WhatIfEstimate {
  std::vector<virtual_time::WhatIf> scaled;
  std::vector<FigurePair> figures;  // main_figures() of the device as it is and scaled; empty for a search
};

// The first lines of its plan.
std::string to_text(const WhatIfEstimate& what_if);
nlohmann::ordered_json to_json(const WhatIfEstimate& what_if);

}  // namespace loom::plan
