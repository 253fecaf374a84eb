#include "engine/train/profiler.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/device/memory_recorder.h"
#include "engine/device/simulate.h"
#include "engine/nn/call_stack.h"
#include "engine/tensor/io/atomic_file.h"
#include "engine/train/perfetto.h"

namespace loom::train {
namespace {

namespace fs = std::filesystem;
using device::TimelineEntry;
using device::TimelineKind;
using Json = nlohmann::ordered_json;

void write_text(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string_view about_level(ProfileLevel level) {
  switch (level) {
    case ProfileLevel::kLevel0:
      return "level0: what runs on the streams, kernels of the compute stream joined";
    case ProfileLevel::kLevel1:
      return "level1: level0, and each kernel";
    case ProfileLevel::kLevel2:
      return "level2: level1, and shapes, the waits of streams, memory by category";
  }
  return "";
}

TraceContent content_of(const ProfileArguments& asked) {
  const bool all = asked.level == ProfileLevel::kLevel2;
  return {.kernels = asked.level != ProfileLevel::kLevel0,
          .waits = all,
          .host = asked.with_cpu,
          .memory = all || asked.with_memory,
          .shapes = all || asked.record_shapes};
}

// The device's memory change by change, with the host's clock.
class ClockedMemory {
 public:
  explicit ClockedMemory(device::Device& device) : device_(device) {}
  ~ClockedMemory() { stop(); }
  ClockedMemory(const ClockedMemory&) = delete;
  ClockedMemory& operator=(const ClockedMemory&) = delete;

  void start() {
    sample();
    device_.memory().observe_changes([this] { sample(); });
  }
  void stop() { device_.memory().observe_changes({}); }

  const std::vector<device::MemorySample>& samples() const { return samples_; }
  std::vector<MemoryPoint> at_wall_time(std::int64_t origin_ns) const {
    std::vector<MemoryPoint> points;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const device::MemorySample& sample = samples_[i];
      points.push_back({times_[i] - origin_ns, sample.by_category, sample.allocated_bytes, sample.reserved_bytes});
    }
    return points;
  }

 private:
  void sample() {
    const device::MemStats stats = device_.memory().stats();
    samples_.push_back({.entries = static_cast<std::int64_t>(device_.timeline().entries().size()),
                        .by_category = stats.by_category,
                        .allocated_bytes = stats.allocator.allocated_bytes,
                        .reserved_bytes = stats.allocator.reserved_bytes});
    times_.push_back(device::wall_clock_ns());
  }

  device::Device& device_;
  std::vector<device::MemorySample> samples_;
  std::vector<std::int64_t> times_;
};

// The wall clock's times in the form of virtual ones, from 0 on. The compute stream is the host's thread.
device::RankTimes wall_times(const device::Timeline& timeline, int rank, std::int64_t origin_ns) {
  device::RankTimes times;
  times.rank = rank;
  for (const device::WallTime& wall : timeline.wall_times()) {
    times.entries.push_back({wall.issued - origin_ns, wall.start - origin_ns, wall.end - origin_ns});
    times.end_ns = std::max(times.end_ns, times.entries.back().end);
  }
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    if (timeline.entries()[i].kind != TimelineKind::kMark) continue;
    const std::int64_t at = times.entries[i].issued;
    times.marks.push_back({static_cast<std::int64_t>(i), at, at, at});
    times.host_end_ns = at;
  }
  return times;
}

// --- Summary

struct Total {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  std::int64_t wall_ns = 0;
  std::int64_t virtual_ns = 0;
};

class Summary {
 public:
  Summary(const device::Timeline& timeline, const device::RankTimes& wall, const device::RankTimes* computed)
      : timed_(computed != nullptr) {
    for (std::size_t i = 0; i < timeline.entries().size(); ++i) {
      const TimelineEntry& entry = timeline.entries()[i];
      if (entry.kind != TimelineKind::kWork && entry.kind != TimelineKind::kHostWork) continue;
      const bool collective = entry.group >= 0;
      const auto members = collective ? static_cast<std::int64_t>(timeline.group(entry.group).size()) : 0;
      const std::string where(entry.kind == TimelineKind::kHostWork ? "host" : device::name(entry.stream));
      Total& total = (collective ? collectives_ : kernels_)[{timeline.text(entry.name), where, members}];
      ++total.count;
      total.bytes += collective ? entry.bytes : entry.cost.read_bytes + entry.cost.written_bytes;
      total.wall_ns += wall.entries[i].end - wall.entries[i].start;
      if (timed_) total.virtual_ns += computed->entries[i].end - computed->entries[i].start;
    }
  }

  Json kernels() const { return rows(kernels_, false); }
  Json collectives() const { return rows(collectives_, true); }

 private:
  using Key = std::tuple<std::string, std::string, std::int64_t>;  // name, stream, members

  // Longest first.
  Json rows(const std::map<Key, Total>& totals, bool collectives) const {
    std::vector<std::pair<Key, Total>> sorted(totals.begin(), totals.end());
    std::ranges::stable_sort(sorted, std::greater<>(), [](const auto& row) { return row.second.wall_ns; });
    Json rows = Json::array();
    for (const auto& [key, total] : sorted) {
      Json row = {{"name", std::get<0>(key)}, {"stream", std::get<1>(key)}};
      if (collectives) row["members"] = std::get<2>(key);
      row["count"] = total.count;
      row["bytes"] = total.bytes;
      row["wall_ns"] = total.wall_ns;
      if (timed_) row["virtual_ns"] = total.virtual_ns;
      rows.push_back(std::move(row));
    }
    return rows;
  }

  const bool timed_;
  std::map<Key, Total> kernels_;
  std::map<Key, Total> collectives_;
};

}  // namespace

struct Profiler::Collected {
  explicit Collected(device::Device& at) : device(at), memory(at) {}

  device::Device& device;
  nn::CallSites call_sites;
  ClockedMemory memory;
  std::vector<std::int64_t> steps;
};

Profiler::Profiler(const TrainArguments& arguments, const std::optional<device::HardwareProfile>& device)
    : arguments_(arguments.profile),
      device_(device),
      on_host_(arguments.device_executor == DeviceExecutor::kInline ? OnHost::kAllStreams : OnHost::kCompute),
      collects_(arguments_.enabled && std::ranges::count(arguments_.ranks, RankContext::current().rank()) > 0) {}

Profiler::~Profiler() {
  if (collected_) collected_->device.timeline().enable(false);
}

void Profiler::begin_step(std::int64_t step) {
  if (!collects_ || step < arguments_.step_start || step >= arguments_.step_end) return;
  device::Device& device = device::Device::current();
  if (!collected_) {
    device.synchronize();
    device.timeline().clear();
    collected_ = std::make_unique<Collected>(device);
  }
  collected_->steps.push_back(step);
  device::Recording recording{.wall = true};
  if (arguments_.with_stack) recording.call_site = [sites = &collected_->call_sites] { return sites->running(); };
  device.timeline().enable(true, std::move(recording));
  if (content_of(arguments_).memory) collected_->memory.start();
}

void Profiler::end_step() {
  if (!collected_) return;
  collected_->memory.stop();
  collected_->device.timeline().enable(false);
}

std::optional<std::string> Profiler::finish() {
  if (!collected_) return std::nullopt;
  device::Device& device = collected_->device;
  device.synchronize();
  const device::Timeline& timeline = device.timeline();
  const int rank = RankContext::current().rank();
  const std::int64_t origin_ns = timeline.wall_times().empty() ? 0 : timeline.wall_times().front().issued;

  std::vector<TracedRank> traced;
  traced.push_back({.process = 0,
                    .name = fmt::format("rank {}: wall time", rank),
                    .timeline = &timeline,
                    .times = wall_times(timeline, rank, origin_ns),
                    .memory = collected_->memory.at_wall_time(origin_ns),
                    .on_host = on_host_,
                    .steps = collected_->steps});
  if (device_) {
    const device::RankTimeline mine{rank, &timeline};
    device::RankTimes times = device::resolve({&mine, 1}, device::TimeModel(*device_)).ranks.front();
    traced.push_back({.process = 1,
                      .name = fmt::format("rank {}: virtual time on {}", rank, device_->name),
                      .timeline = &timeline,
                      .times = std::move(times),
                      .memory = {},
                      .on_host = OnHost::kNothing,
                      .steps = collected_->steps});
    traced.back().memory = at_virtual_time(collected_->memory.samples(), timeline, traced.back().times);
  }

  Json about = {{"rank", rank},
                {"world_size", RankContext::current().world_size()},
                {"steps", collected_->steps},
                {"level", about_level(arguments_.level)},
                {"clock", "ns of this machine since " + std::to_string(origin_ns)}};
  if (device_) about["device"] = device_->name;
  const std::string name = fmt::format("rank{}_steps{}-{}", rank, collected_->steps.front(), collected_->steps.back());
  std::error_code failed;
  fs::create_directories(arguments_.save_path, failed);
  const fs::path trace = arguments_.save_path / (name + ".json");
  write_text(trace, perfetto_trace(traced, content_of(arguments_), about));
  const Summary summary(timeline, traced[0].times, device_ ? &traced[1].times : nullptr);
  about["kernels"] = summary.kernels();
  about["collectives"] = summary.collectives();
  write_text(arguments_.save_path / (name + ".summary.json"), about.dump(1) + "\n");
  device.timeline().clear();
  collected_.reset();
  return trace.string();
}

std::optional<std::string> profile_warning(const ProfileArguments& arguments, std::int64_t train_iters) {
  if (!arguments.enabled || train_iters > arguments.step_start) return std::nullopt;
  return fmt::format(
      "--profile-step-start is {}, but --train-iters is {}, so no step is profiled; use a start below {}",
      arguments.step_start, train_iters, train_iters);
}

}  // namespace loom::train
