#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/core/shown_text.h"
#include "engine/core/units.h"
#include "engine/core/wrapped.h"
#include "engine/plan/weights_plan.h"

namespace loom::plan {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kTextIndent = 4;

std::string static_memory(const WeightsPlan& plan) {
  std::string text = fmt::format("{}static memory {} of {}: parameters {}, gradients {}, optimizer state {}\n",
                                 plan.fits() ? "" : "DOES NOT FIT: ", memory_text(plan.static_bytes()),
                                 memory_text(plan.capacity_bytes), memory_text(plan.shard_bytes),
                                 memory_text(plan.gradient_bytes), memory_text(plan.optimizer_state_bytes));
  if (plan.host_bytes > 0) text += fmt::format("  on the host {}\n", memory_text(plan.host_bytes));
  return text + "activations: unknown, and so are peaks and the time of the step; the model's code is not known\n";
}

std::string group_table(const std::vector<observe::GroupSum>& groups) {
  if (groups.empty()) return "";
  std::int64_t most = 0;
  for (const observe::GroupSum& sum : groups) most = std::max({most, sum.gathered_bytes, sum.reduced_bytes});
  const Unit unit = unit_of_bytes(most);
  std::string text = fmt::format("\n{:<52}{:>8}{:>12}{:>12}{:>12}\n", fmt::format("groups, {}", unit.name), "gathers",
                                 "each", "reductions", "each");
  for (const observe::GroupSum& sum : groups) {
    text += fmt::format("  {:<50}{:>8}{:>12}{:>12}{:>12}\n", escaped(sum.group), sum.gathers,
                        figure(sum.gathered_bytes, unit), sum.reductions, figure(sum.reduced_bytes, unit));
  }
  return text;
}

std::string communication_of_step(const std::vector<CommunicationEstimate>& kinds) {
  std::string text;
  for (const CommunicationEstimate& kind : kinds) {
    text += fmt::format("  {} x {} over {} ranks{}: {} received, {} alone\n", kind.count, kind.collective, kind.ranks,
                        kind.link.empty() ? "" : ", " + kind.link, memory_text(kind.received_bytes),
                        time_text(kind.time_ns));
  }
  return text.empty() ? "" : "\ncommunication of a step\n" + text;
}

}  // namespace

std::string to_text(const WeightsPlan& plan) {
  std::string text = fmt::format("weights of {}: {} parameters on {} x {}, {} micro-batch{}\n",
                                 escaped(plan.folder.string()), count_text(plan.parameters), plan.world, plan.device,
                                 plan.micro_batches, plan.micro_batches == 1 ? "" : "es");
  if (plan.trained_parameters < plan.parameters)
    text += fmt::format("  {} of them are trained\n", count_text(plan.trained_parameters));
  if (!plan.mode.empty()) text += fmt::format("{}\n", plan.mode);
  text += static_memory(plan) + group_table(plan.groups) + communication_of_step(plan.communication);
  if (!plan.volume.empty()) text += "\n" + sharding::volume_table(plan.volume);
  for (const std::string& warning : plan.warnings) text += "warning: " + warning + "\n";
  return wrapped(text, kTextIndent);
}

ordered_json to_json(const WeightsPlan& plan) {
  ordered_json groups = ordered_json::array(), volumes = ordered_json::array();
  for (const observe::GroupSum& sum : plan.groups) {
    groups.push_back({{"group", sum.group},
                      {"gathers", sum.gathers},
                      {"gathered_bytes", sum.gathered_bytes},
                      {"reductions", sum.reductions},
                      {"reduced_bytes", sum.reduced_bytes}});
  }
  for (const sharding::AxisVolume& volume : plan.volume) {
    volumes.push_back({{"axis", volume.axis},
                       {"ranks", volume.ranks},
                       {"predicted_bytes", volume.predicted_bytes},
                       {"received_bytes", volume.received_bytes}});
  }
  return {{"model_weights", plan.folder.string()},
          {"parameters", plan.parameters},
          {"trained_parameters", plan.trained_parameters},
          {"device", plan.device},
          {"world_size", plan.world},
          {"mode", plan.mode},
          {"micro_batches", plan.micro_batches},
          {"memory",
           {{"shard_bytes", plan.shard_bytes},
            {"gradient_bytes", plan.gradient_bytes},
            {"optimizer_state_bytes", plan.optimizer_state_bytes},
            {"static_bytes", plan.static_bytes()},
            {"activation_bytes", nullptr},
            {"host_bytes", plan.host_bytes},
            {"capacity_bytes", plan.capacity_bytes},
            {"fits", plan.fits()}}},
          {"groups", groups},
          {"communication", observe::to_json(plan.communication)},
          {"volume", volumes}};
}

}  // namespace loom::plan
