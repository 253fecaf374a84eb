#include "engine/plan/training_cost.h"

#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/units.h"
#include "engine/plan/planner.h"

namespace loom::plan {
namespace {

constexpr double kHoursOfADay = 24;
constexpr double kNsOfAnHour = 3600e9;

// "15T", "300B"; exact below a million.
std::string short_count(double count) {
  for (const auto& [letter, size] : {std::pair{'T', 1e12}, std::pair{'B', 1e9}, std::pair{'M', 1e6}}) {
    if (count >= size) return fmt::format("{:g}{}", count / size, letter);
  }
  return fmt::format("{:.0f}", count);
}

}  // namespace

TrainingCost training_cost(const StepEstimate& plan, const TrainingGoal& goal) {
  TrainingCost cost;
  cost.goal = goal;
  cost.steps = std::ceil(goal.tokens / static_cast<double>(plan.throughput.tokens));
  const double hours = cost.steps * static_cast<double>(plan.time.step_ns) / kNsOfAnHour;
  cost.days = hours / kHoursOfADay;
  cost.device_hours = hours * plan.world;
  if (goal.price_per_device_hour) cost.price = cost.device_hours * *goal.price_per_device_hour;
  return cost;
}

std::string to_text(const TrainingCost& cost) {
  std::string text =
      fmt::format("{} tokens: {:.0f} step{}, {} days, {} device hours", short_count(cost.goal.tokens), cost.steps,
                  cost.steps == 1 ? "" : "s", figure(cost.days, 2), figure(cost.device_hours, 1));
  if (cost.price) text += fmt::format(", {} at {:g} each", figure(*cost.price, 2), *cost.goal.price_per_device_hour);
  return text + "\n";
}

nlohmann::ordered_json to_json(const TrainingCost& cost) {
  nlohmann::ordered_json json{
      {"tokens", cost.goal.tokens}, {"steps", cost.steps}, {"days", cost.days}, {"device_hours", cost.device_hours}};
  if (!cost.price) return json;
  json["price_per_device_hour"] = *cost.goal.price_per_device_hour;
  json["price"] = *cost.price;
  return json;
}

}  // namespace loom::plan
