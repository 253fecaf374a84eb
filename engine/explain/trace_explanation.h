// What a trace of torch.profiler says beside the plan of its job: where the step is longer, which groups take more of
// the device, what FSDP did in another order, and which one setting, if the run had it otherwise, gives the trace's
// order.
//
// Plan      of the job in unlimited memory, on the rank whose figures a plan shows.
// Order     of all-gathers, waits and reductions (step_figures.h). A trace without annotations of FSDP has none.
// Settings  tried one at a time where the orders differ and the job has a file (other_settings.h); the nearest is named
//           if it takes at least a fifth off the number of events that differ.
// Threads   the calling thread, and those of plans.
// Errors    ConfigError for the trace; those of plans.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/explain/memory_place.h"
#include "engine/explain/step_figures.h"

namespace loom::explain {

// A setting of the job, as it would be otherwise.
struct TriedOrder {
  std::string change;        // "reshard_after_forward: false"
  std::size_t distance = 0;  // between the trace's order and its plan's
  std::string refused{};     // why the job cannot have it; empty: it was planned
};

struct TraceExplanation {
  std::string file;
  StepFigures real{};
  StepFigures planned{};
  std::string model{};
  std::string device{};  // of the plan
  int rank = 0;          // of the plan
  std::size_t order_distance = 0;
  std::vector<TriedOrder> tried{};  // nearest first, refused ones last
  bool explains = false;            // the first of them

  bool has_order() const { return !real.order.empty(); }
  // The first event in which the orders differ; the length of both where they are equal.
  std::size_t first_difference() const;
  // The orders differ, and without the root's events they are equal.
  bool differs_in_root() const;
};

TraceExplanation explain_trace(const std::filesystem::path& file, const JobOfRun& job);

// At most kTextColumns a line.
std::string to_text(const TraceExplanation& explanation);
nlohmann::ordered_json to_json(const TraceExplanation& explanation);

}  // namespace loom::explain
