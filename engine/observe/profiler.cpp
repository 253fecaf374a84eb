#include "engine/observe/profiler.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/device/memory_recorder.h"
#include "engine/io/atomic_file.h"
#include "engine/nn/call_stack.h"
#include "engine/observe/perfetto.h"
#include "engine/virtual_time/resolve.h"

namespace loom::observe {
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

TraceContent content_of(const ProfileOptions& asked) {
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
      points.push_back({std::max<std::int64_t>(0, times_[i] - origin_ns), sample.by_category, sample.allocated_bytes,
                        sample.reserved_bytes});
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
virtual_time::RankTimes wall_times(const device::Timeline& timeline, int rank, std::int64_t origin_ns) {
  virtual_time::RankTimes times;
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
  Summary(const device::Timeline& timeline, const virtual_time::RankTimes& wall,
          const virtual_time::RankTimes* computed)
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

Profiler::Profiler(const ProfileOptions& options, const std::optional<virtual_time::HardwareProfile>& device,
                   ProfiledRun run)
    : options_(options),
      device_(device),
      on_host_(run.executor == device::ExecutorKind::kInline ? OnHost::kAllStreams : OnHost::kCompute),
      collects_(options_.enabled && std::ranges::count(options_.ranks, RankContext::current().rank()) > 0),
      last_step_(std::min(options_.step_end, run.train_iters) - 1) {}

Profiler::~Profiler() {
  if (collected_) collected_->device.timeline().enable(false);
}

void Profiler::begin_step(std::int64_t step) {
  if (!collects_ || step < options_.step_start || step >= options_.step_end) return;
  device::Device& device = device::Device::current();
  if (!collected_) {
    device.synchronize();
    device.timeline().clear();
    collected_ = std::make_unique<Collected>(device);
  }
  collected_->steps.push_back(step);
  device::Recording recording{.wall = true};
  if (options_.with_stack) recording.call_site = [sites = &collected_->call_sites] { return sites->running(); };
  device.timeline().enable(true, std::move(recording));
  if (content_of(options_).memory) collected_->memory.start();
}

void Profiler::end_step(std::int64_t step) {
  if (!collected_) return;
  collected_->memory.stop();
  collected_->device.timeline().enable(false);
  if (step < last_step_) return;
  logger().info("profile written to {}", write());
  collected_.reset();
}

// The wall clock's, and virtual time's where there is a device for it.
std::vector<TracedRank> Profiler::traced(std::int64_t origin_ns) const {
  const device::Timeline& timeline = collected_->device.timeline();
  const int rank = RankContext::current().rank();
  TracedRank wall{.process = 0, .name = fmt::format("rank {}: wall time", rank), .timeline = &timeline};
  wall.times = wall_times(timeline, rank, origin_ns);
  wall.memory = collected_->memory.at_wall_time(origin_ns);
  wall.on_host = on_host_;
  wall.steps = collected_->steps;
  if (!device_) return {std::move(wall)};

  TracedRank computed{
      .process = 1, .name = fmt::format("rank {}: virtual time on {}", rank, device_->name), .timeline = &timeline};
  const virtual_time::RankTimeline mine{rank, &timeline};
  computed.times = virtual_time::resolve({&mine, 1}, virtual_time::TimeModel(*device_)).ranks.front();
  computed.memory = at_virtual_time(collected_->memory.samples(), timeline, computed.times);
  computed.steps = collected_->steps;
  return {std::move(wall), std::move(computed)};
}

Json Profiler::about(std::int64_t origin_ns) const {
  Json about = {{"rank", RankContext::current().rank()},
                {"world_size", RankContext::current().world_size()},
                {"steps", collected_->steps},
                {"level", about_level(options_.level)},
                {"clock", fmt::format("ns of this machine since {}", origin_ns)}};
  if (device_) about["device"] = device_->name;
  return about;
}

std::string Profiler::write() const {
  device::Device& device = collected_->device;
  device.synchronize();
  const std::int64_t origin_ns = device.timeline().wall_times().front().issued;  // a step begins with a mark
  const std::vector<TracedRank> ranks = traced(origin_ns);
  const auto& steps = collected_->steps;
  const std::string name = fmt::format("rank{}_steps{}-{}", RankContext::current().rank(), steps.front(), steps.back());
  std::error_code failed;  // shows when the file is made
  fs::create_directories(options_.save_path, failed);
  const fs::path trace = options_.save_path / (name + ".json");
  write_text(trace, perfetto_trace(ranks, content_of(options_), about(origin_ns)));
  const Summary summary(device.timeline(), ranks[0].times, device_ ? &ranks[1].times : nullptr);
  Json json = about(origin_ns);
  json["kernels"] = summary.kernels();
  json["collectives"] = summary.collectives();
  write_text(options_.save_path / (name + ".summary.json"), json.dump(1) + "\n");
  device.timeline().clear();
  return trace.string();
}

std::optional<std::string> profile_warning(const ProfileOptions& arguments, std::int64_t train_iters) {
  if (!arguments.enabled || train_iters > arguments.step_start) return std::nullopt;
  return fmt::format(
      "--profile-step-start is {}, but --train-iters is {}, so no step is profiled; use a start below {}",
      arguments.step_start, train_iters, train_iters);
}

}  // namespace loom::observe
