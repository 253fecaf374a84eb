// The cost of a training of so many tokens at the speed of a plan: steps, time, device hours, money.
//
// Time     whole steps, one after the other: no evaluation, no checkpoints, no failures.
// Threads  safe from any number of threads.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace loom::plan {

struct StepEstimate;

// --tokens and --price-per-device-hour.
struct TrainingGoal {
  double tokens = 0;
  std::optional<double> price_per_device_hour;
};

struct TrainingCost {
  TrainingGoal goal;
  double steps = 0;  // whole; may be more than 64 bits count
  double days = 0;
  double device_hours = 0;
  std::optional<double> price;
};

TrainingCost training_cost(const StepEstimate& plan, const TrainingGoal& goal);

// A line.
std::string to_text(const TrainingCost& cost);
nlohmann::ordered_json to_json(const TrainingCost& cost);

}  // namespace loom::plan
