#include "engine/explain/step_figures.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_path.h"
#include "engine/core/shown_text.h"
#include "engine/explain/step_groups.h"
#include "engine/plan/job_allocations.h"
#include "sharding/marks.h"

namespace loom::explain {
namespace {

using io::ProfilerTrace;
using io::TraceAnnotation;
using io::TraceWork;

constexpr double kUs = 1e-3;  // of a nanosecond

struct Span {
  double begin = 0;
  double end = 0;
};

double length_of_union(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::begin);
  double length = 0, reached = 0;
  for (const Span& span : spans) {
    const double begin = std::max(span.begin, reached);
    length += std::max(0.0, span.end - begin);
    reached = std::max(reached, span.end);
  }
  return length;
}

// --- a trace

bool has_any(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

WorkClass class_of_kernel(std::string_view name) {
  if (has_any(name, {"nccl", "rccl", "oneShot", "twoShot"})) return WorkClass::kCollective;
  if (has_any(name, {"sdpa", "fmha", "flash", "attention", "compute_dot_do_o", "convert_dq"})) {
    return WorkClass::kAttention;
  }
  if (has_any(name, {"gemm", "Gemm", "GEMM", "nvjet", "cutlass", "xmma", "Cijk_", "gemv", "splitKreduce"})) {
    return WorkClass::kProduct;
  }
  return WorkClass::kOther;
}

// "FSDP::all_gather (model.layers.3)" is of "FSDP::all_gather": the group; the root's has no name.
std::optional<std::string> group_of(const std::string& annotation, std::string_view what) {
  if (!annotation.starts_with(what)) return std::nullopt;
  const std::string rest = annotation.substr(what.size());
  if (rest.empty()) return rest;
  if (!rest.starts_with(" (") || !rest.ends_with(')')) return std::nullopt;
  return rest.substr(2, rest.size() - 3);
}

bool is_optimizer_step(const TraceAnnotation& annotation) { return annotation.name.starts_with("Optimizer.step#"); }

// The host's time of the last step.
Span step_of(const ProfilerTrace& trace) {
  Span step{-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  for (const TraceAnnotation& annotation : trace.annotations) {
    if (!is_optimizer_step(annotation)) continue;
    step.begin = std::exchange(step.end, annotation.end);
  }
  if (step.begin == std::numeric_limits<double>::infinity()) step.begin = -step.begin;
  return step;
}

// What the host is in at a time; asked for times in ascending order.
class HostPlace {
 public:
  explicit HostPlace(const ProfilerTrace& trace) {
    for (const TraceAnnotation& one : trace.annotations) add(one);
    for (const double begin : trace.backward_nodes) events_.push_back({begin, Kind::kBackward, {}});
    std::ranges::stable_sort(events_, {}, &Event::at);
  }

  void go_to(double time) {
    for (; next_ < events_.size() && events_[next_].at <= time; ++next_) apply(events_[next_]);
  }
  StepPhase phase() const { return phase_; }
  // Of FSDP: its own copies run.
  bool is_sharding() const { return sharding_ > 0; }
  const std::string& group() const { return running_.empty() ? of_backward_ : running_.back(); }

 private:
  enum class Kind : std::uint8_t {
    kForward,
    kBackward,
    kOptimizer,
    kEnd,
    kEnter,
    kLeave,
    kPreBackward,
    kSharding,
    kShardingEnd
  };
  struct Event {
    double at = 0;
    Kind kind = Kind::kForward;
    std::string group;
  };

  void add(const TraceAnnotation& one) {
    const auto is = [&](std::string_view what) { return group_of(one.name, what); };
    if (one.name == "FSDP::root_pre_forward") events_.push_back({one.start, Kind::kForward, {}});
    if (is_optimizer_step(one)) {
      events_.push_back({one.start, Kind::kOptimizer, {}});
      events_.push_back({one.end, Kind::kEnd, {}});
    }
    if (const auto group = is("FSDP::pre_forward")) events_.push_back({one.start, Kind::kEnter, *group});
    if (const auto group = is("FSDP::post_forward")) events_.push_back({one.end, Kind::kLeave, *group});
    if (const auto group = is("FSDP::pre_backward")) events_.push_back({one.start, Kind::kPreBackward, *group});
    for (const char* what : {"FSDP::all_gather", "FSDP::all_gather_copy_out", "FSDP::post_backward_reduce"}) {
      if (!is(what)) continue;
      events_.push_back({one.start, Kind::kSharding, {}});
      events_.push_back({one.end, Kind::kShardingEnd, {}});
    }
  }

  void apply(const Event& event) {
    switch (event.kind) {
      case Kind::kForward:
      case Kind::kEnd:
        phase_ = StepPhase::kForward;
        of_backward_.clear();
        break;
      case Kind::kBackward:
        if (phase_ == StepPhase::kForward) phase_ = StepPhase::kBackward;
        break;
      case Kind::kOptimizer:
        phase_ = StepPhase::kOptimizer;
        break;
      case Kind::kEnter:
        running_.push_back(event.group);
        break;
      case Kind::kLeave:
        if (const auto found = std::ranges::find(running_, event.group); found != running_.end()) {
          running_.erase(found, running_.end());
        }
        break;
      case Kind::kPreBackward:
        running_.clear();
        of_backward_ = event.group;
        break;
      case Kind::kSharding:
        ++sharding_;
        break;
      case Kind::kShardingEnd:
        --sharding_;
        break;
    }
  }

  std::vector<Event> events_;
  std::size_t next_ = 0;
  StepPhase phase_ = StepPhase::kForward;
  std::vector<std::string> running_;
  std::string of_backward_;
  int sharding_ = 0;
};

std::vector<std::string> order_of(const ProfilerTrace& trace, const Span& step) {
  constexpr std::pair<std::string_view, std::string_view> kEvents[] = {
      {"FSDP::all_gather", "AG"}, {"FSDP::all_gather_copy_out", "W"}, {"FSDP::post_backward_reduce", "RS"}};
  std::vector<std::string> order;
  for (const TraceAnnotation& one : trace.annotations) {
    if (one.start < step.begin || one.start >= step.end) continue;
    for (const auto& [what, token] : kEvents) {
      if (const auto group = group_of(one.name, what)) order.push_back(fmt::format("{} {}", token, shown_path(*group)));
    }
  }
  return order;
}

void check_one_device(const ProfilerTrace& trace, std::string_view file) {
  const std::int64_t device = trace.work.front().device;
  const auto other = std::ranges::find_if(trace.work, [&](const TraceWork& work) { return work.device != device; });
  if (other == trace.work.end()) return;
  config_error("{}: has work of the devices {} and {}; give the trace of one rank", escaped(std::string(file)), device,
               other->device);
}

// --- a plan

WorkClass class_of_entry(const device::Entry& entry, std::string_view name) {
  if (entry.kind == device::EntryKind::kCollective) return WorkClass::kCollective;
  const bool copies =
      entry.kind == device::EntryKind::kCopy || name.starts_with("gather_copy") || name.starts_with("reduce_copy");
  if (copies) return WorkClass::kShardingCopy;
  if (entry.cost.unit == device::Unit::kAttention) return WorkClass::kAttention;
  return entry.cost.unit == device::Unit::kMatrix ? WorkClass::kProduct : WorkClass::kOther;
}

StepPhase phase_named(std::string_view name, StepPhase before) {
  if (name == "forward") return StepPhase::kForward;
  if (name == "backward") return StepPhase::kBackward;
  return name == "optimizer" ? StepPhase::kOptimizer : before;
}

std::vector<std::string> order_of(const device::Recording& recording) {
  std::vector<std::string> order;
  for (const device::Mark& mark : recording.marks) {
    const bool reduces =
        mark.kind == sharding::kReduceScatterMark || mark.kind == sharding::kReduceScatterAllReduceMark;
    const std::string_view token = mark.kind == sharding::kGatherMark     ? "AG"
                                   : mark.kind == sharding::kGatheredMark ? "W"
                                   : reduces                              ? "RS"
                                                                          : "";
    if (!token.empty()) order.push_back(fmt::format("{} {}", token, shown_path(recording.text(mark.subject))));
  }
  return order;
}

class FigureSums {
 public:
  void add(WorkClass work, StepPhase phase, const std::string& group, const Span& span) {
    const double length = span.end - span.begin;
    ++figures_.works;
    figures_.by_class[static_cast<std::size_t>(work)] += length;
    if (work == WorkClass::kCollective) return;
    busy_.push_back(span);
    figures_.by_phase[static_cast<std::size_t>(phase)] += length;
    if (work == WorkClass::kShardingCopy || phase == StepPhase::kOptimizer) return;
    figures_.by_group[group][static_cast<std::size_t>(phase)] += length;
  }
  StepFigures finish(double step_us, std::vector<std::string> order) {
    figures_.step_us = step_us;
    figures_.busy_us = length_of_union(std::move(busy_));
    figures_.order = std::move(order);
    return std::move(figures_);
  }

 private:
  StepFigures figures_;
  std::vector<Span> busy_;
};

}  // namespace

std::string_view name_of(WorkClass work) {
  constexpr std::array<std::string_view, kWorkClasses> kNames{"matrix products", "attention", "other operators",
                                                              "copies of FSDP", "collectives"};
  return kNames[static_cast<std::size_t>(work)];
}

std::string_view name_of(StepPhase phase) {
  constexpr std::array<std::string_view, kStepPhases> kNames{"forward", "backward", "optimizer"};
  return kNames[static_cast<std::size_t>(phase)];
}

StepFigures figures_of(const ProfilerTrace& trace, std::string_view file) {
  check_one_device(trace, file);
  const Span step = step_of(trace);
  // By launch: the host's order.
  std::vector<const TraceWork*> works;
  for (const TraceWork& work : trace.work) {
    const double launched = work.launched >= 0 ? work.launched : work.start;
    if (launched >= step.begin && launched < step.end) works.push_back(&work);
  }
  if (works.empty()) {
    config_error("{}: no kernel was launched within its last step; profile a whole step", escaped(std::string(file)));
  }
  const auto launched = [](const TraceWork* work) { return work->launched >= 0 ? work->launched : work->start; };
  std::ranges::stable_sort(works, {}, launched);
  HostPlace host(trace);
  FigureSums sums;
  double end = 0;
  for (const TraceWork* work : works) {
    host.go_to(launched(work));
    WorkClass work_class = class_of_kernel(work->name);
    if (host.is_sharding() && work_class == WorkClass::kOther) work_class = WorkClass::kShardingCopy;
    const std::string& group = host.group();
    sums.add(work_class, host.phase(), group.empty() ? shown_path("") : pattern_of(group), {work->start, work->end});
    end = std::max(end, work->end);
  }
  double begin = launched(works.front());
  for (const TraceAnnotation& one : trace.annotations) {
    if (one.start >= step.begin && one.start < step.end) begin = std::min(begin, one.start);
  }
  return sums.finish(end - begin, order_of(trace, step));
}

StepFigures figures_of(const plan::PlannedRun& run) {
  const device::Recording& recording = run.recording;
  const StepGroups groups(recording);
  StepPhase phase = StepPhase::kForward;
  FigureSums sums;
  for (std::size_t i = 0; i < recording.entries.size(); ++i) {
    const device::Entry& entry = recording.entries[i];
    const std::string& name = recording.text(entry.name);
    if (entry.kind == device::EntryKind::kPhase) phase = phase_named(name, phase);
    if (!device::is_stream_work(entry.kind)) continue;
    const virtual_time::EntryTime& time = run.times.entries[i];
    const std::string group = groups.of(plan::innermost_module(recording.text(entry.site)));
    sums.add(class_of_entry(entry, name), phase, group.empty() ? shown_path("") : group,
             {kUs * static_cast<double>(time.start), kUs * static_cast<double>(time.end)});
  }
  return sums.finish(kUs * static_cast<double>(run.times.end_ns), order_of(recording));
}

// By the longest common part of the two.
std::size_t events_apart(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  std::vector<std::size_t> before(other.size() + 1), now(other.size() + 1);
  for (const std::string& event : one) {
    for (std::size_t i = 0; i < other.size(); ++i) {
      now[i + 1] = event == other[i] ? before[i] + 1 : std::max(before[i + 1], now[i]);
    }
    std::swap(before, now);
  }
  return one.size() + other.size() - 2 * before.back();
}

}  // namespace loom::explain
