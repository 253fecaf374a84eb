#include "engine/plan/plan_memory.h"

#include <algorithm>

#include "engine/core/shown_path.h"
#include "sharding/marks.h"

namespace loom::plan {
namespace {

using device::EntryKind;
using device::Mark;
using device::MarkKind;
using device::MemorySample;

// Adds the memory between the beginnings of two phases.
void add_phase_memory(MemoryEstimate& plan, const std::string& name, std::span<const MemorySample> samples) {
  const device::MemoryPeaks peaks = device::peaks_of(samples);
  auto known = std::ranges::find(plan.phases, name, &PhaseMemory::phase);
  if (known == plan.phases.end()) known = plan.phases.insert(known, PhaseMemory{.phase = name});
  known->end_allocated_bytes = samples.back().allocated_bytes;
  if (peaks.allocated_bytes <= known->peak_allocated_bytes) return;
  known->peak_allocated_bytes = peaks.allocated_bytes;
  known->by_category_at_peak = peaks.by_category_at_peak;
  if (peaks.allocated_bytes <= plan.peak_allocated_bytes) return;
  plan.peak_allocated_bytes = peaks.allocated_bytes;
  plan.peak_phase = name;
}

// Peaks between one phase and the next. The sample before a phase says how the memory stood when it began.
void measure_phases(MemoryEstimate& plan, const device::Recording& recording) {
  const std::span<const MemorySample> samples(recording.memory);
  std::string name;  // of the phase before
  std::size_t from = 0;
  for (std::size_t i = 0; i < recording.entries.size(); ++i) {
    if (recording.entries[i].kind != EntryKind::kPhase) continue;
    const auto later = std::ranges::upper_bound(samples, static_cast<std::int64_t>(i), {}, &MemorySample::entries);
    const auto until = static_cast<std::size_t>(later - samples.begin());
    if (!name.empty()) add_phase_memory(plan, name, samples.subspan(from, until - from));
    name = recording.text(recording.entries[i].name);
    from = until - 1;
  }
}

std::string phase_at(const device::Recording& recording, std::int64_t entries) {
  for (std::int64_t i = entries - 1; i >= 0; --i) {
    if (recording.entry(i).kind == EntryKind::kPhase) return recording.text(recording.entry(i).name);
  }
  return "";
}

// The group that the device computes with: the last one waited for. Empty before the first of a step.
std::string group_at(const device::Recording& recording, std::int64_t entries) {
  const auto later = std::ranges::upper_bound(recording.marks, entries, {}, &Mark::entries);
  for (auto mark = later; mark != recording.marks.begin();) {
    --mark;
    if (mark->kind == sharding::kGatheredMark) return shown_path(recording.text(mark->subject));
  }
  return "";
}

void count_flushes(MemoryEstimate& plan, const device::Recording& recording) {
  for (std::size_t i = 1; i < recording.memory.size(); ++i) {
    const MemorySample& sample = recording.memory[i];
    const std::int64_t count = sample.cache_flushes - recording.memory[i - 1].cache_flushes;
    if (count == 0) continue;
    plan.cache_flushes += count;
    const CacheFlush flush{phase_at(recording, sample.entries), group_at(recording, sample.entries), count};
    const auto known = std::ranges::find_if(
        plan.flushes, [&](const CacheFlush& f) { return f.phase == flush.phase && f.group == flush.group; });
    if (known == plan.flushes.end()) {
      plan.flushes.push_back(flush);
    } else {
      known->count += count;
    }
  }
}

}  // namespace

void measure_memory(MemoryEstimate& memory, const device::Recording& recording) {
  measure_phases(memory, recording);
  memory.peak_reserved_bytes = device::peaks_of(recording.memory).reserved_bytes;
  count_flushes(memory, recording);
}

}  // namespace loom::plan
