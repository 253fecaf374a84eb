#include "engine/plan/plan_output.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/plan/units.h"

namespace loom::plan {
namespace {

using nlohmann::ordered_json;

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string trained_line(const StepEstimate& plan) {
  const std::int64_t frozen = plan.parameters - plan.trained_parameters;
  if (frozen == 0) return "all parameters are trained\n";
  return fmt::format("{:.3f} G parameters are trained, {:.3f} G are frozen\n",
                     static_cast<double>(plan.trained_parameters) * 1e-9, static_cast<double>(frozen) * 1e-9);
}

std::string head(const StepEstimate& plan) {
  std::string text = fmt::format("{} of {:.3f} G parameters on {} x {}, micro-batch {} x {} of {} tokens\n", plan.model,
                                 static_cast<double>(plan.parameters) * 1e-9, plan.world, plan.device,
                                 plan.micro_batches, plan.micro_batch, plan.seq_length);
  if (!plan.mode.empty()) text += plan.mode + "\n";
  return text + trained_line(plan);
}

// Where the allocator's cache was emptied; nothing where it was not.
std::string flush_lines(const MemoryEstimate& memory) {
  if (memory.cache_flushes == 0) return "";
  std::string text = fmt::format(
      "  the allocator emptied its cache {} because a segment did not fit; each time the device stalls, "
      "which the step's time leaves out\n",
      memory.cache_flushes == 1 ? "once" : fmt::format("{} times", memory.cache_flushes));
  for (const CacheFlush& flush : memory.flushes) {
    text += fmt::format("    {} x in {}{}\n", flush.count, flush.phase,
                        flush.group.empty() ? "" : fmt::format(", at group '{}'", flush.group));
  }
  return text;
}

std::string verdict(const MemoryEstimate& memory) {
  if (!memory.fits) return "DOES NOT FIT";
  return memory.cache_flushes > 0 ? "fits, with its cache emptied on the way" : "fits";
}

// Bytes cached at the end of a step that are worth a look at where they are.
constexpr std::int64_t kShownCache = std::int64_t{1} << 30;

std::string pool_lines(const MemoryEstimate& memory) {
  std::int64_t cached = 0;
  for (const device::PoolStats& pool : memory.pools) cached += pool.free_bytes();
  return memory.pools_by_life || cached > kShownCache ? pool_table(memory.pools) : "";
}

// Of all devices that share a host; nothing where they keep nothing on it.
std::string host_line(const MemoryEstimate& memory) {
  if (memory.host_bytes == 0) return "";
  const std::string text =
      fmt::format("  a host keeps {:.2f} for {} device{}", gib(memory.host_bytes * memory.host_devices),
                  memory.host_devices, memory.host_devices == 1 ? "" : "s");
  if (memory.host_capacity_bytes == 0) {
    return text + "; its memory is not known (host.memory_bytes of the profile), so this is not checked\n";
  }
  return text +
         fmt::format(" of {:.2f}: {}\n", gib(memory.host_capacity_bytes), memory.host_fits ? "fits" : "DOES NOT FIT");
}

std::string memory_table(const MemoryEstimate& memory) {
  std::string text = fmt::format("\nmemory, GiB   {:>11}", "peak");
  for (int c = 0; c < device::kMemCategories; ++c) {
    text += fmt::format("{:>16}", device::name(static_cast<device::MemCategory>(c)));
  }
  text += fmt::format("{:>8}\n", "end");
  for (const PhaseMemory& phase : memory.phases) {
    text += fmt::format("  {:<12}{:>11.2f}", phase.phase, gib(phase.peak_allocated_bytes));
    for (const std::int64_t bytes : phase.by_category_at_peak) text += fmt::format("{:>16.2f}", gib(bytes));
    text += fmt::format("{:>8.2f}\n", gib(phase.end_allocated_bytes));
  }
  text += fmt::format(
      "  peak allocated {:.2f} (in {}), peak reserved {:.2f} of {:.2f}: {}; reserved at the end {:.2f}, "
      "allocated between steps {:.2f}{}\n",
      gib(memory.peak_allocated_bytes), memory.peak_phase, gib(memory.peak_reserved_bytes), gib(memory.capacity_bytes),
      verdict(memory), gib(memory.reserved_bytes), gib(memory.steady_allocated_bytes),
      memory.host_bytes > 0 ? fmt::format("; host {:.2f}", gib(memory.host_bytes)) : "");
  return text + flush_lines(memory) + pool_lines(memory) + host_line(memory);
}

std::string communication_table(const StepEstimate& plan) {
  if (plan.communication.empty()) return "";
  std::string text = fmt::format("\n{:<26}{:>8}{:>12}{:>8}{:>12}{:>12}\n", "communication of a step", "ranks", "link",
                                 "count", "GiB", "ms alone");
  for (const CommunicationEstimate& kind : plan.communication) {
    text += fmt::format("  {:<24}{:>8}{:>12}{:>8}{:>12.2f}{:>12.2f}\n", kind.collective, kind.ranks, kind.link,
                        kind.count, gib(kind.received_bytes), ms(kind.time_ns));
  }
  return text;
}

std::string time_table(const TimeEstimate& time) {
  const virtual_time::Breakdown& b = time.breakdown;
  std::string text = fmt::format("\nstep {:.2f} ms:", ms(time.step_ns));
  for (const PhaseTime& phase : time.phases) text += fmt::format(" {} {:.2f}", phase.phase, ms(phase.compute_ns));
  text += fmt::format(
      "\n  compute {:.1f} %, exposed communication {:.2f} ms ({:.1f} %; {:.2f} ms in all), exposed "
      "copies {:.2f} ms, idle {:.2f} ms\n",
      percent(b.compute_ns, time.step_ns), ms(b.exposed_comm_ns), percent(b.exposed_comm_ns, time.step_ns),
      ms(b.comm_ns), ms(b.exposed_copy_ns), ms(b.idle_ns));
  if (time.host_bound()) {
    text += fmt::format("  the host decides: device and links alone would need {:.2f} ms\n", ms(time.device_bound_ns));
  }
  return text;
}

std::string throughput_line(const ThroughputEstimate& t) {
  return fmt::format(
      "{:.0f} tokens/s per device, {:.0f} in all; MFU {:.1f} % (3 x forward matrix arithmetic, causal "
      "attention by half), HFU {:.1f} %\n",
      t.tokens_per_s_per_device, t.tokens_per_s, 100 * t.mfu, 100 * t.hfu);
}

ordered_json memory_json(const MemoryEstimate& memory) {
  ordered_json json;
  for (const PhaseMemory& phase : memory.phases) {
    ordered_json categories;
    for (int c = 0; c < device::kMemCategories; ++c) {
      categories[std::string(device::name(static_cast<device::MemCategory>(c))) + "_bytes"] =
          phase.by_category_at_peak[static_cast<std::size_t>(c)];
    }
    json["phases"].push_back({{"phase", phase.phase},
                              {"peak_allocated_bytes", phase.peak_allocated_bytes},
                              {"end_allocated_bytes", phase.end_allocated_bytes},
                              {"by_category_at_peak", categories}});
  }
  json["peak_allocated_bytes"] = memory.peak_allocated_bytes;
  json["peak_phase"] = memory.peak_phase;
  json["steady_allocated_bytes"] = memory.steady_allocated_bytes;
  json["peak_reserved_bytes"] = memory.peak_reserved_bytes;
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

}  // namespace

std::string pool_table(const std::vector<device::PoolStats>& pools) {
  std::string text = fmt::format("  {:<16}{:>12}{:>12}{:>12}{:>14}{:>15}\n", "pool, MiB", "reserved", "allocated",
                                 "free", "largest free", "fragmentation");
  for (const device::PoolStats& pool : pools) {
    text += fmt::format("  {:<16}{:>12.2f}{:>12.2f}{:>12.2f}{:>14.2f}{:>13.1f} %\n", pool.pool,
                        mib(pool.reserved_bytes), mib(pool.allocated_bytes), mib(pool.free_bytes()),
                        mib(pool.largest_free_bytes), 100 * pool.fragmentation());
  }
  return text;
}

std::string to_text(const StepEstimate& plan) {
  std::string text = head(plan) + memory_table(plan.memory) + communication_table(plan) + time_table(plan.time) +
                     to_text(plan.swaps) + throughput_line(plan.throughput);
  for (const std::string& warning : plan.warnings) text += "warning: " + warning + "\n";
  return text;
}

ordered_json to_json(const StepEstimate& plan) {
  ordered_json json;
  json["model"] = plan.model;
  json["parameters"] = plan.parameters;
  json["trained_parameters"] = plan.trained_parameters;
  json["device"] = plan.device;
  json["world_size"] = plan.world;
  json["mode"] = plan.mode;
  json["micro_batch_size"] = plan.micro_batch;
  json["micro_batches"] = plan.micro_batches;
  json["seq_length"] = plan.seq_length;
  json["memory"] = memory_json(plan.memory);
  json["communication"] = observe::to_json(plan.communication);
  json["time"] = time_json(plan.time);
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
  json["warnings"] = plan.warnings;
  return json;
}

std::string out_of_memory_text(const CheckedEstimate& checked) {
  std::string text = checked.out_of_memory.value() + "\n";
  if (checked.remedies.empty()) return text + "no change of the file, nor two or three together, would make it fit\n";
  text += "it would fit with\n";
  for (const Remedy& remedy : checked.remedies) {
    text += fmt::format("  {} ({} {:.2f} GiB, step {:.2f} ms)\n", remedy.change,
                        remedy.saved_bytes < 0 ? "takes, on the device," : "saves", gib(std::abs(remedy.saved_bytes)),
                        ms(remedy.step_ns));
  }
  return text;
}

std::string to_text(const CheckedEstimate& checked) {
  const std::string text = to_text(checked.plan);
  return checked.out_of_memory ? text + "\n" + out_of_memory_text(checked) : text;
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

std::string to_text(const std::vector<PlanSearch::Candidate>& sweep) {
  constexpr std::size_t kShown = 20;
  std::string text =
      fmt::format("{} configurations fit; the fastest per token first\n{:>12}{:>12}{:>10}{:>9}{:>8}  {}\n",
                  sweep.size(), "tokens/s/dev", "step ms", "GiB", "flushes", "MFU %", "change");
  for (std::size_t i = 0; i < std::min(kShown, sweep.size()); ++i) {
    const StepEstimate& plan = sweep[i].plan;
    text += fmt::format("{:>12.0f}{:>12.2f}{:>10.2f}{:>9}{:>8.1f}  {}\n", plan.throughput.tokens_per_s_per_device,
                        ms(plan.time.step_ns), gib(plan.memory.peak_reserved_bytes), plan.memory.cache_flushes,
                        100 * plan.throughput.mfu, sweep[i].change);
  }
  if (sweep.size() > kShown) text += fmt::format("and {} more (--json has all)\n", sweep.size() - kShown);
  return text;
}

ordered_json to_json(const std::vector<PlanSearch::Candidate>& sweep) {
  ordered_json json;
  json["sweep"] = ordered_json::array();
  for (const PlanSearch::Candidate& candidate : sweep) {
    ordered_json row = to_json(candidate.plan);
    row["change"] = candidate.change;
    json["sweep"].push_back(std::move(row));
  }
  return json;
}

}  // namespace loom::plan
