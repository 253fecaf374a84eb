#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <functional>
#include <span>

#include "engine/core/units.h"
#include "engine/core/wrapped.h"
#include "engine/plan/plan_output.h"
#include "sharding/memory.h"

namespace loom::plan {
namespace {

constexpr std::size_t kIndent = 4;  // of the lines that a sentence goes on in

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string percent_text(double percent) { return figure(percent, 1) + " %"; }

// The largest value of `of` over all rows.
template <typename Rows, typename Of>
std::int64_t most(const Rows& rows, Of of) {
  std::int64_t largest = 0;
  for (const auto& row : rows) largest = std::max<std::int64_t>(largest, std::invoke(of, row));
  return largest;
}

// --- what is planned

std::string trained_line(const StepEstimate& plan) {
  const std::int64_t frozen = plan.parameters - plan.trained_parameters;
  if (frozen == 0) return "all parameters are trained\n";
  return fmt::format("{} parameters are trained, {} are frozen\n", count_text(plan.trained_parameters),
                     count_text(frozen));
}

std::string head(const StepEstimate& plan) {
  std::string text = fmt::format("{} of {} parameters on {} x {}, micro-batch {} x {} of {} tokens\n", plan.model,
                                 count_text(plan.parameters), plan.world, plan.device, plan.micro_batches,
                                 plan.micro_batch, plan.seq_length);
  if (!plan.mode.empty()) text += plan.mode + "\n";
  return text + trained_line(plan);
}

// --- whether it fits, and how fast it is

std::string verdict(const MemoryEstimate& memory) {
  if (!memory.fits) return "DOES NOT FIT";
  if (!memory.host_fits) return "DOES NOT FIT the host";
  return memory.cache_flushes > 0 ? "fits, with its cache emptied on the way" : "fits";
}

// The memory of all devices that share a host; nothing if they keep nothing on it.
std::string host_line(const MemoryEstimate& memory) {
  if (memory.host_bytes == 0) return "";
  const bool known = memory.host_capacity_bytes > 0;
  const std::string text =
      fmt::format("a host keeps {}{} for {} device{}", memory_text(memory.host_bytes * memory.host_devices),
                  known ? " of " + memory_text(memory.host_capacity_bytes) : "", memory.host_devices,
                  memory.host_devices == 1 ? "" : "s");
  if (known) return text + (memory.host_fits ? ": fits\n" : ": DOES NOT FIT\n");
  return text + "; its memory is not known (host.memory_bytes of the profile), so this is not checked\n";
}

std::string speed_line(const StepEstimate& plan) {
  const ThroughputEstimate& t = plan.throughput;
  return fmt::format("step {}; {} tokens/s per device, {} in all; MFU {}, HFU {}\n", time_text(plan.time.step_ns),
                     figure(t.tokens_per_s_per_device, 0), figure(t.tokens_per_s, 0), percent_text(100 * t.mfu),
                     percent_text(100 * t.hfu));
}

// Which allocator the plan assumes, and what the other would give.
std::string allocator_line(const MemoryEstimate& memory) {
  const AllocatorEstimate& allocator = memory.allocator;
  const auto word = [](bool on) { return on ? "True" : "False"; };
  const std::string other = allocator.other_peak_reserved_bytes
                                ? "peak reserved " + memory_text(*allocator.other_peak_reserved_bytes)
                                : "it does not fit";
  return fmt::format("allocator expandable_segments:{} ({}); with {}: {}\n", word(allocator.expandable_segments),
                     allocator.from, word(!allocator.expandable_segments), other);
}

// What the device holds beside the allocator's segments, and both together; nothing if it holds nothing.
std::string outside_line(const MemoryEstimate& memory) {
  const OutsideMemory& outside = memory.outside;
  if (outside.bytes() == 0) return "";
  return fmt::format("outside the allocator {}: {}; {} would show {}\n", memory_text(outside.bytes()),
                     parts_text(outside), outside.tool.empty() ? "a monitoring tool" : outside.tool,
                     memory_text(memory.shown_bytes));
}

std::string essentials(const StepEstimate& plan) {
  const MemoryEstimate& memory = plan.memory;
  return fmt::format("\n{}: peak reserved {} of {}, peak allocated {} (in {})\n", verdict(memory),
                     memory_text(memory.peak_reserved_bytes), memory_text(memory.capacity_bytes),
                     memory_text(memory.peak_allocated_bytes), memory.peak_phase) +
         allocator_line(memory) + outside_line(memory) + host_line(memory) + speed_line(plan) +
         (plan.training ? to_text(*plan.training) : "");
}

// --- memory

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

// Bytes cached at the end of a step that are worth a look at where they are.
constexpr std::int64_t kShownCache = std::int64_t{1} << 30;

std::string pool_lines(const MemoryEstimate& memory) {
  std::int64_t cached = 0;
  for (const device::PoolStats& pool : memory.pools) cached += pool.free_bytes();
  return memory.pools_by_life || cached > kShownCache ? pool_table(memory.pools) : "";
}

template <typename Of>
std::string memory_row(std::string_view name, std::span<const PhaseMemory> phases, const Unit& unit, Of of) {
  std::string text = fmt::format("  {:<18}", name);
  for (const PhaseMemory& phase : phases) text += fmt::format("{:>12}", figure(std::invoke(of, phase), unit));
  return text + "\n";
}

// Phases side by side. A category that no phase has is left out.
std::string memory_table(const MemoryEstimate& memory) {
  const Unit unit = unit_of_bytes(most(memory.phases, &PhaseMemory::peak_allocated_bytes));
  std::string text = fmt::format("\n{:<20}", fmt::format("memory, {}", unit.name));
  for (const PhaseMemory& phase : memory.phases) text += fmt::format("{:>12}", phase.phase);
  text += "\n" + memory_row("peak allocated", memory.phases, unit, &PhaseMemory::peak_allocated_bytes);
  for (const device::MemCategory c : sharding::kMemCategories) {
    const auto bytes = [&](const PhaseMemory& phase) { return phase.by_category_at_peak[c]; };
    if (most(memory.phases, bytes) == 0) continue;
    text += memory_row(fmt::format("  {}", c.name()), memory.phases, unit, bytes);
  }
  text += memory_row("at the end", memory.phases, unit, &PhaseMemory::end_allocated_bytes);
  if (most(memory.phases, &PhaseMemory::host_bytes) == 0) return text;
  return text + memory_row("on the host, more", memory.phases, unit, &PhaseMemory::host_bytes);
}

std::string memory_section(const MemoryEstimate& memory) {
  return memory_table(memory) +
         fmt::format("  reserved at the end {}, allocated between steps {}{}\n", memory_text(memory.reserved_bytes),
                     memory_text(memory.steady_allocated_bytes),
                     memory.host_bytes > 0 ? ", on the host " + memory_text(memory.host_bytes) : "") +
         flush_lines(memory) + pool_lines(memory);
}

// --- time

std::string communication_table(const std::vector<CommunicationEstimate>& kinds) {
  if (kinds.empty()) return "";
  const Unit bytes = unit_of_bytes(most(kinds, &CommunicationEstimate::received_bytes));
  const Unit time = unit_of_time(most(kinds, &CommunicationEstimate::time_ns));
  std::string text = fmt::format("\n{:<26}{:>8}{:>12}{:>8}{:>12}{:>12}\n", "communication of a step", "ranks", "link",
                                 "count", bytes.name, fmt::format("{} alone", time.name));
  for (const CommunicationEstimate& kind : kinds) {
    text += fmt::format("  {:<24}{:>8}{:>12}{:>8}{:>12}{:>12}\n", kind.collective, kind.ranks, kind.link, kind.count,
                        figure(kind.received_bytes, bytes), figure(kind.time_ns, time));
  }
  return text;
}

std::string volume_section(const std::vector<sharding::AxisVolume>& volumes) {
  return volumes.empty() ? "" : "\n" + sharding::volume_table(volumes);
}

std::string time_section(const TimeEstimate& time, const std::string& software) {
  const virtual_time::Breakdown& b = time.breakdown;
  const Unit unit = unit_of_time(time.step_ns);
  std::string text = fmt::format("\ntime, {}: step {}", unit.name, figure(time.step_ns, unit));
  for (const PhaseTime& phase : time.phases)
    text += fmt::format(", {} {}", phase.phase, figure(phase.compute_ns, unit));
  text += fmt::format(", with {}\n  compute {}, exposed communication {} ({}; {} in all), exposed copies {}, idle {}\n",
                      software, percent_text(percent(b.compute_ns, time.step_ns)), figure(b.exposed_comm_ns, unit),
                      percent_text(percent(b.exposed_comm_ns, time.step_ns)), figure(b.comm_ns, unit),
                      figure(b.exposed_copy_ns, unit), figure(b.idle_ns, unit));
  std::vector<std::string> exposed;
  for (const virtual_time::AxisTime& axis : time.exposed) {
    if (axis.exposed_ns > 0) exposed.push_back(fmt::format("{} {}", axis.axis, figure(axis.exposed_ns, unit)));
  }
  if (exposed.size() > 1) text += fmt::format("  exposed over {}\n", fmt::join(exposed, ", "));
  if (time.host_bound()) {
    text += fmt::format("  the host decides: device and links alone would need {}\n", time_text(time.device_bound_ns));
  }
  return text + "  MFU counts 3 x the matrix arithmetic of the forward, causal attention by half\n";
}

// --- changes

std::string remedy_line(const Remedy& remedy) {
  return wrapped(fmt::format("    {} ({} {}, step {})\n", remedy.change,
                             remedy.saved_bytes < 0 ? "takes, on the device," : "saves",
                             memory_text(std::abs(remedy.saved_bytes)), time_text(remedy.step_ns)),
                 kIndent + 4);
}

}  // namespace

std::string pool_table(const std::vector<device::PoolStats>& pools) {
  const Unit unit = unit_of_bytes(most(pools, &device::PoolStats::reserved_bytes));
  std::string text = fmt::format("  {:<16}{:>12}{:>12}{:>12}{:>14}{:>15}\n", fmt::format("pool, {}", unit.name),
                                 "reserved", "allocated", "free", "largest free", "fragmentation");
  for (const device::PoolStats& pool : pools) {
    text += fmt::format("  {:<16}{:>12}{:>12}{:>12}{:>14}{:>15}\n", pool.pool, figure(pool.reserved_bytes, unit),
                        figure(pool.allocated_bytes, unit), figure(pool.free_bytes(), unit),
                        figure(pool.largest_free_bytes, unit), percent_text(100 * pool.fragmentation()));
  }
  return text;
}

std::string to_text(const StepEstimate& plan) {
  std::string text = head(plan) + essentials(plan) + memory_section(plan.memory) +
                     communication_table(plan.communication) + volume_section(plan.volume) +
                     time_section(plan.time, plan.software) +
                     (plan.pipeline ? to_text(*plan.pipeline, plan.time.step_ns) : "") + to_text(plan.swaps);
  for (const std::string& warning : plan.warnings) text += "warning: " + warning + "\n";
  return wrapped(text, kIndent);
}

std::string out_of_memory_text(const CheckedEstimate& checked) {
  const std::string text = wrapped(checked.out_of_memory.value() + "\n", kIndent);
  if (checked.remedies.empty()) return text + "  no change of the file, nor two or three together, would make it fit\n";
  std::string changes = "  it would fit with\n";
  for (const Remedy& remedy : checked.remedies) changes += remedy_line(remedy);
  return text + changes;
}

std::string to_text(const CheckedEstimate& checked) {
  const std::string text = to_text(checked.plan);
  return checked.out_of_memory ? text + "\n" + out_of_memory_text(checked) : text;
}

}  // namespace loom::plan
