#include "engine/plan/job_allocations.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/core/shown_path.h"
#include "engine/plan/planned_rank.h"
#include "engine/train/inputs.h"
#include "engine/train/schedule/pipeline_action.h"
#include "engine/train/step/marks.h"
#include "sharding/marks.h"
#include "sharding/memory.h"

namespace loom::plan {
namespace {

using device::AllocatorAction;
using device::Entry;
using device::EntryKind;
using device::Mark;
using device::MarkKind;
using device::MemCategory;
using device::Recording;

constexpr std::int64_t kMostMicroBatches = 4;
constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kRounding = 512;

// By which an event changes what is allocated.
std::int64_t allocated_by(const device::AllocatorChange& change) {
  if (change.action == AllocatorAction::kAlloc) return change.bytes;
  return change.action == AllocatorAction::kFree ? -change.bytes : 0;
}

std::int64_t allocated_at_begin(const device::AllocatorTrace& trace) {
  std::int64_t bytes = 0;
  for (const device::AllocatorSegment& segment : trace.segments) {
    for (const device::AllocatorBlock& block : segment.blocks) bytes += block.allocated ? block.bytes : 0;
  }
  for (const device::AllocatorEvent& event : trace.events) bytes -= allocated_by(event.change);
  return bytes;
}

// The job with few micro-batches of the same size.
train::TrainSections with_few_micro_batches(const train::TrainSections& arguments, const train::ParallelDims& dims) {
  train::TrainSections few = arguments;
  const std::int64_t all =
      dims.micro_batches(arguments.schedule.global_batch_size, arguments.schedule.micro_batch_size);
  if (all > kMostMicroBatches) {
    few.schedule.global_batch_size = static_cast<int>(arguments.schedule.global_batch_size / all * kMostMicroBatches);
  }
  return few;
}

// The phase of the entries before that number, and which of its kind it is.
std::pair<std::string, std::int64_t> phase_before(const Recording& recording, std::int64_t entries) {
  std::string phase;
  std::map<std::string, std::int64_t> begun;
  for (std::int64_t i = 0; i < entries; ++i) {
    const Entry& entry = recording.entry(i);
    if (entry.kind != EntryKind::kPhase) continue;
    phase = recording.text(entry.name);
    ++begun[phase];
  }
  return {phase, phase.empty() ? 0 : begun[phase] - 1};
}

// The first work behind that number of entries: for which the memory was allocated.
const Entry* work_behind(const Recording& recording, std::int64_t entries) {
  for (auto i = static_cast<std::size_t>(entries); i < recording.entries.size(); ++i) {
    if (device::is_stream_work(recording.entries[i].kind)) return &recording.entries[i];
  }
  return nullptr;
}

// The subject of the next mark of a kind; empty without one.
std::string subject_behind(const Recording& recording, std::int64_t entries, std::initializer_list<MarkKind> kinds) {
  for (auto mark = std::ranges::lower_bound(recording.marks, entries, {}, &Mark::entries);
       mark != recording.marks.end(); ++mark) {
    if (std::ranges::find(kinds, mark->kind) != kinds.end()) return shown_path(recording.text(mark->subject));
  }
  return {};
}

std::string subject_before(const Recording& recording, std::int64_t entries, std::initializer_list<MarkKind> kinds) {
  auto mark = std::ranges::upper_bound(recording.marks, entries, {}, &Mark::entries);
  while (mark != recording.marks.begin()) {
    --mark;
    if (std::ranges::find(kinds, mark->kind) != kinds.end()) return shown_path(recording.text(mark->subject));
  }
  return {};
}

// The deepest group at or above a module, shown; empty: none was gathered.
std::string group_of(const std::string& module, const Recording& recording) {
  const std::string* found = nullptr;
  for (const Mark& mark : recording.marks) {
    if (mark.kind != sharding::kGatheredMark) continue;
    const std::string& path = recording.text(mark.subject);
    const bool is_above = path.empty() || module == path || module.starts_with(path + ".");
    if (is_above && (found == nullptr || path.size() > found->size())) found = &path;
  }
  return found == nullptr ? "" : shown_path(*found);
}

bool is_of_backward(std::string_view op) {
  return op.find("grad") != std::string_view::npos || op.find("backward") != std::string_view::npos ||
         op.ends_with("_dx") || op.ends_with("_dw");
}

bool is_reduction(const Entry* work, const Recording& recording) {
  return work != nullptr && work->kind != EntryKind::kKernel && recording.text(work->name) == "reduce_scatter";
}

std::string of_operator(std::string_view what, const Entry* work, const Recording& recording) {
  return work == nullptr ? std::string(what) : fmt::format("{} of {}", what, recording.text(work->name));
}

}  // namespace

std::string innermost_module(const std::string& site) {
  const auto last = site.rfind(" > ");
  const std::string innermost = last == std::string::npos ? site : site.substr(last + 3);
  const auto type = innermost.find(" (");
  if (type != std::string::npos) return innermost.substr(0, type);
  return innermost.empty() ? "" : shown_path("");
}

std::int64_t segment_bytes_of(std::int64_t request_bytes) {
  if (request_bytes <= kMiB) return 2 * kMiB;
  if (request_bytes < 10 * kMiB) return 20 * kMiB;
  return round_up(request_bytes, 2 * kMiB);
}

std::string to_text(const AllocationPlace& place) {
  std::string text = place.what;
  if (!place.module.empty()) text += fmt::format(" in '{}'", place.module);
  if (!place.phase.empty()) text += fmt::format(", in {}", place.phase);
  if (place.phase != "optimizer" && !place.phase.empty()) text += fmt::format(" of micro-batch {}", place.micro_batch);
  if (place.stage >= 0) text += fmt::format(" on stage {}", place.stage);
  if (!place.group.empty()) text += fmt::format(", group '{}'", place.group);
  return text;
}

JobAllocations::JobAllocations(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                               const virtual_time::HardwareProfile& profile, int rank) {
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  if (inputs.fsdp2) {
    for (const sharding::RecomputedModule& module : inputs.fsdp2->recomputed) recomputed_.push_back(module.path);
  }
  for (const sharding::RecomputedModule& module : inputs.recomputed) recomputed_.push_back(module.path);
  const auto repeated = inputs.pipeline ? few_micro_batches(arguments, callbacks, inputs, {}) : std::nullopt;
  const train::TrainingInputs& recorded = repeated ? repeated->inputs : inputs;
  train::TrainSections few = repeated          ? repeated->arguments
                             : inputs.pipeline ? arguments
                                               : with_few_micro_batches(arguments, inputs.dims);
  few.memory.record_allocator = true;
  record({few, callbacks, recorded, profile, std::nullopt, nullptr, /*traced=*/true}, rank);
  peaks_ = device::peaks_of(later_.memory);
  add_points(1);
  add_points(2);
}

// In a pipeline the rank with the first stage shows what the others get from it.
void JobAllocations::record(const PlannedJob& job, int rank) {
  train::HiddenStates hidden;
  int planned = 0;
  if (const auto& pipeline = job.inputs.pipeline) {
    const int width = job.arguments.launch.ranks / static_cast<int>(pipeline->lists.size());
    const int first = static_cast<int>(pipeline->stages.front().rank);
    planned = rank / width * width;
    if (rank / width != first) {
      PlannedRank before(job, first * width);
      before.record();
      hidden = before.hidden();
    }
  }
  PlannedRank of_rank(job, planned, hidden);
  later_ = of_rank.record();
  first_ = of_rank.first_step();
}

void JobAllocations::add_points(int step) {
  const device::AllocatorTrace& trace = (step == 1 ? first_ : later_).allocator;
  std::int64_t allocated = allocated_at_begin(trace);
  for (const device::AllocatorEvent& event : trace.events) {
    if (event.change.action == AllocatorAction::kAlloc) {
      points_.push_back({.step = step,
                         .entries = event.entries,
                         .bytes = round_up(event.change.requested_bytes, kRounding),
                         .category = event.origin.category,
                         .allocated_before_bytes = allocated});
    }
    allocated += allocated_by(event.change);
  }
}

AllocationPlace JobAllocations::place_of(const AllocationPoint& point) const {
  const Recording& recording = recording_of(point);
  const std::int64_t entries = point.entries;
  const Entry* const work = work_behind(recording, entries);
  AllocationPlace place;
  std::tie(place.phase, place.micro_batch) = phase_before(recording, entries);
  if (const std::string action = subject_before(recording, entries, {train::kActionMark}); !action.empty()) {
    const train::PipelineAction running = train::parse_pipeline_step(action).actions.front();
    if (running.micro_batch != train::kNoMicroBatch) place.micro_batch = running.micro_batch;
    if (place.phase != "optimizer") place.stage = running.stage;
  }
  const auto reduced = [&] {
    return subject_before(recording, entries, {sharding::kReduceScatterMark, sharding::kReduceScatterAllReduceMark});
  };
  const bool in_step = place.phase != "optimizer";
  if (in_step && work != nullptr) place.module = innermost_module(recording.text(work->site));
  if (in_step) {
    place.group = place.module.empty() ? subject_before(recording, entries, {sharding::kGatheredMark})
                                       : group_of(place.module, recording);
  }
  switch (point.category.place()) {
    case sharding::kGatherBuffer.place():
      place.what = "buffer of an all-gather";
      place.group = subject_behind(recording, entries, {sharding::kGatherMark});
      place.module.clear();
      break;
    case MemCategory::kParameter.place():
      place.what = "whole parameters";
      place.group = subject_behind(recording, entries, {sharding::kGatheredMark, sharding::kGatherMark});
      place.module.clear();
      break;
    case sharding::kReduceBuffer.place():
      place.what = "buffer of a reduce-scatter";
      place.group = reduced();
      place.module.clear();
      break;
    case MemCategory::kGradient.place():
      place.what =
          is_reduction(work, recording) ? "gradient shards" : of_operator("gradient of a parameter", work, recording);
      if (is_reduction(work, recording)) place.group = reduced(), place.module.clear();
      break;
    case MemCategory::kOptimizerState.place():
      place.what = "optimizer state";
      break;
    case sharding::kShard.place():
      place.what = "shards of parameters";
      break;
    case MemCategory::kTemporary.place():
      place.what = of_operator(in_step ? "workspace" : "temporary of the optimizer: input", work, recording);
      break;
    case MemCategory::kActivation.place(): {
      const bool backward = place.phase == "backward";
      const bool gradient = backward && work != nullptr && is_of_backward(recording.text(work->name));
      place.what = of_operator(gradient ? "gradient, output" : "output", work, recording);
      const bool again = std::ranges::any_of(recomputed_, [&](const std::string& path) {
        return place.module == path || place.module.starts_with(path + ".");
      });
      if (backward && !gradient && again) place.phase = "recompute";
      break;
    }
  }
  return place;
}

}  // namespace loom::plan
