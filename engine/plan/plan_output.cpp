#include "engine/plan/plan_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sharding/memory.h"

namespace loom::plan {
namespace {

using nlohmann::ordered_json;

ordered_json outside_json(const OutsideMemory& outside) {
  ordered_json json{{"bytes", outside.bytes()},
                    {"context_bytes", outside.context_bytes},
                    {"library", outside.library},
                    {"buffer_bytes", outside.buffer_bytes},
                    {"communicators", ordered_json::array()},
                    {"tool", outside.tool}};
  for (const Communicator& communicator : outside.communicators) {
    json["communicators"].push_back(
        {{"name", communicator.name}, {"ranks", communicator.ranks}, {"bytes", communicator.bytes}});
  }
  return json;
}

ordered_json memory_json(const MemoryEstimate& memory) {
  ordered_json json;
  for (const PhaseMemory& phase : memory.phases) {
    ordered_json categories;
    for (const device::MemCategory c : sharding::kMemCategories) {
      categories[std::string(c.name()) + "_bytes"] = phase.by_category_at_peak[c];
    }
    json["phases"].push_back({{"phase", phase.phase},
                              {"peak_allocated_bytes", phase.peak_allocated_bytes},
                              {"end_allocated_bytes", phase.end_allocated_bytes},
                              {"host_bytes", phase.host_bytes},
                              {"by_category_at_peak", categories}});
  }
  json["peak_allocated_bytes"] = memory.peak_allocated_bytes;
  json["peak_phase"] = memory.peak_phase;
  json["steady_allocated_bytes"] = memory.steady_allocated_bytes;
  json["peak_reserved_bytes"] = memory.peak_reserved_bytes;
  json["allocator"] = {{"expandable_segments", memory.allocator.expandable_segments},
                       {"conf", memory.allocator.conf},
                       {"from", memory.allocator.from},
                       {"other_peak_reserved_bytes", nullptr}};
  if (const auto& other = memory.allocator.other_peak_reserved_bytes) {
    json["allocator"]["other_peak_reserved_bytes"] = *other;
  }
  json["reserved_bytes"] = memory.reserved_bytes;
  json["cache_flushes"] = memory.cache_flushes;
  json["flushes"] = ordered_json::array();
  for (const CacheFlush& flush : memory.flushes) {
    json["flushes"].push_back({{"phase", flush.phase}, {"group", flush.group}, {"count", flush.count}});
  }
  json["pools"] = ordered_json::array();
  for (const device::PoolStats& pool : memory.pools) {
    json["pools"].push_back({{"pool", pool.pool},
                             {"reserved_bytes", pool.reserved_bytes},
                             {"allocated_bytes", pool.allocated_bytes},
                             {"largest_free_bytes", pool.largest_free_bytes},
                             {"fragmentation", pool.fragmentation()}});
  }
  json["capacity_bytes"] = memory.capacity_bytes;
  json["outside"] = outside_json(memory.outside);
  json["shown_bytes"] = memory.shown_bytes;
  json["workspace_bytes"] = memory.workspace_bytes;
  json["host_bytes"] = memory.host_bytes;
  json["host_devices"] = memory.host_devices;
  json["host_capacity_bytes"] = memory.host_capacity_bytes;
  json["host_fits"] = memory.host_fits;
  json["fits"] = memory.fits && memory.host_fits;
  return json;
}

ordered_json time_json(const TimeEstimate& time) {
  ordered_json json;
  json["step_ns"] = time.step_ns;
  json["device_bound_ns"] = time.device_bound_ns;
  json["host_bound"] = time.host_bound();
  for (const PhaseTime& phase : time.phases) {
    json["phases"].push_back({{"phase", phase.phase}, {"compute_ns", phase.compute_ns}, {"host_ns", phase.host_ns}});
  }
  json["compute_ns"] = time.breakdown.compute_ns;
  json["communication_ns"] = time.breakdown.comm_ns;
  json["exposed_communication_ns"] = time.breakdown.exposed_comm_ns;
  json["exposed_copy_ns"] = time.breakdown.exposed_copy_ns;
  json["idle_ns"] = time.breakdown.idle_ns;
  return json;
}

// Of collectives over one axis.
std::int64_t exposed_ns(const TimeEstimate& time, const std::string& axis) {
  const auto found = std::ranges::find(time.exposed, axis, &virtual_time::AxisTime::axis);
  return found == time.exposed.end() ? 0 : found->exposed_ns;
}

ordered_json degrees_json(const Degrees& degrees) {
  return {{"pp", degrees.pp},
          {"tp", degrees.tp},
          {"ulysses", degrees.ulysses},
          {"ring", degrees.ring},
          {"ep", degrees.ep},
          {"dp_shard", degrees.dp_shard},
          {"dp_replicate", degrees.dp_replicate}};
}

ordered_json best_json(const BestMesh& best, const StepEstimate& plan) {
  ordered_json json{{"row", best.row}, {"mesh", to_text(best.degrees)}, {"exposed", ordered_json::array()}};
  for (const virtual_time::AxisTime& axis : best.exposed) {
    json["exposed"].push_back(
        {{"axis", axis.axis},
         {"exposed_ns", axis.exposed_ns},
         {"share", static_cast<double>(axis.exposed_ns) / static_cast<double>(plan.time.step_ns)}});
  }
  if (!best.against) return json;
  json["against_row"] = *best.against;
  json["longer"] = best.longer;
  json["more_bytes"] = best.more_bytes;
  json["differences"] = ordered_json::array();
  for (const TokenTime& part : best.differences) {
    json["differences"].push_back({{"part", part.part}, {"token_ns", part.ns}});
  }
  return json;
}

}  // namespace

ordered_json to_json(const StepEstimate& plan) {
  ordered_json json;
  json["model"] = plan.model;
  json["parameters"] = plan.parameters;
  json["trained_parameters"] = plan.trained_parameters;
  json["device"] = plan.device;
  json["software"] = plan.software;
  json["world_size"] = plan.world;
  json["mode"] = plan.mode;
  json["micro_batch_size"] = plan.micro_batch;
  json["micro_batches"] = plan.micro_batches;
  json["seq_length"] = plan.seq_length;
  json["memory"] = memory_json(plan.memory);
  json["communication"] = observe::to_json(plan.communication);
  json["volume"] = ordered_json::array();
  for (const sharding::AxisVolume& volume : plan.volume) {
    json["volume"].push_back({{"axis", volume.axis},
                              {"ranks", volume.ranks},
                              {"predicted_bytes", volume.predicted_bytes},
                              {"received_bytes", volume.received_bytes},
                              {"exposed_ns", exposed_ns(plan.time, volume.axis)}});
  }
  json["time"] = time_json(plan.time);
  if (plan.pipeline) json["pipeline"] = to_json(*plan.pipeline);
  json["swap"] = ordered_json::array();
  for (const SwapEstimate& swap : plan.swaps) {
    json["swap"].push_back({{"block", swap.block},
                            {"copies", swap.copies},
                            {"out_bytes", swap.out_bytes},
                            {"exposed_ns", swap.exposed_ns},
                            {"recompute_ns", swap.recompute_ns}});
  }
  const ThroughputEstimate& t = plan.throughput;
  json["throughput"] = {{"tokens", t.tokens},
                        {"tokens_per_s", t.tokens_per_s},
                        {"tokens_per_s_per_device", t.tokens_per_s_per_device},
                        {"model_flops", t.model_flops},
                        {"hardware_flops", t.hardware_flops},
                        {"mfu", t.mfu},
                        {"hfu", t.hfu}};
  if (plan.training) json["training"] = to_json(*plan.training);
  json["warnings"] = plan.warnings;
  return json;
}

ordered_json to_json(const CheckedEstimate& checked) {
  ordered_json json = to_json(checked.plan);
  if (!checked.out_of_memory) return json;
  json["out_of_memory"] = *checked.out_of_memory;
  json["remedies"] = ordered_json::array();
  for (const Remedy& remedy : checked.remedies) {
    json["remedies"].push_back(
        {{"change", remedy.change}, {"saved_bytes", remedy.saved_bytes}, {"step_ns", remedy.step_ns}});
  }
  return json;
}

ordered_json to_json(const Sweep& sweep) {
  ordered_json json;
  json["sweep"] = ordered_json::array();
  for (const Candidate& candidate : sweep.fitting) {
    ordered_json row = to_json(candidate.plan);
    row["row"] = json["sweep"].size();
    row["pareto"] = std::ranges::binary_search(sweep.pareto, json["sweep"].size());
    row["change"] = candidate.change;
    row["degrees"] = degrees_json(degrees_of(candidate.choice));
    json["sweep"].push_back(std::move(row));
  }
  json["best"] = ordered_json::array();
  for (const BestMesh& best : sweep.best) json["best"].push_back(best_json(best, sweep.fitting[best.row].plan));
  json["pruned"] = ordered_json::array();
  for (const Pruned& pruned : sweep.pruned) {
    json["pruned"].push_back({{"reason", pruned.reason}, {"candidates", pruned.candidates}});
  }
  json["meshes"] = {{"surveyed", sweep.meshes},
                    {"that_fit", sweep.meshes_that_fit},
                    {"devices_together", sweep.together},
                    {"fitting_in_part", sweep.fitting_in_part}};
  return json;
}

}  // namespace loom::plan
