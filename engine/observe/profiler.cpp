#include "engine/observe/profiler.h"

#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rank_context.h"
#include "engine/device/recorder.h"
#include "engine/io/atomic_file.h"
#include "engine/nn/call_stack.h"
#include "engine/observe/perfetto.h"
#include "engine/virtual_time/resolve.h"

namespace loom::observe {
namespace {

namespace fs = std::filesystem;
using device::Entry;
using device::EntryKind;
using Json = nlohmann::ordered_json;

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

TraceContent content_of(const ProfileOptions& profile) {
  const bool all = profile.level == ProfileLevel::kLevel2;
  return {.kernels = profile.level != ProfileLevel::kLevel0,
          .waits = all,
          .host = profile.with_cpu,
          .memory = all || profile.with_memory,
          .shapes = all || profile.record_shapes};
}

// The wall clock's times in the form of virtual ones, from 0 on. The compute stream is the host's thread.
virtual_time::RankTimes wall_times(const device::Recording& recording, int rank, std::int64_t origin_ns) {
  virtual_time::RankTimes times;
  times.rank = rank;
  for (const device::WallTime& wall : recording.wall) {
    times.entries.push_back({wall.issued - origin_ns, wall.start - origin_ns, wall.end - origin_ns});
    times.end_ns = std::max(times.end_ns, times.entries.back().end);
  }
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    if (recording.entries[i].kind != EntryKind::kPhase) continue;
    const std::int64_t at = times.entries[i].issued;
    times.phases.push_back({static_cast<std::int64_t>(i), at, at, at});
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
  Summary(const device::Recording& recording, const virtual_time::RankTimes& wall,
          const virtual_time::RankTimes* computed)
      : timed_(computed != nullptr) {
    for (std::size_t i = 0; i < recording.entries.size(); ++i) {
      const Entry& entry = recording.entries[i];
      if (!device::is_stream_work(entry.kind) && entry.kind != EntryKind::kHostWork) continue;
      const bool collective = entry.kind == EntryKind::kCollective;
      const auto members = collective ? static_cast<std::int64_t>(recording.group(entry.group).size()) : 0;
      const std::string where(entry.kind == EntryKind::kHostWork ? "host" : entry.stream.name());
      Total& total = (collective ? collectives_ : kernels_)[{recording.text(entry.name), where, members}];
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
  Collected(device::Device& device, const ProfileOptions& asked)
      : recorder(device, {.wall = true, .memory = content_of(asked).memory, .call_site = site_function(asked)}) {}

  std::function<std::string()> site_function(const ProfileOptions& profile) {
    if (!profile.with_stack) return nullptr;
    return [this] { return call_sites.running(); };
  }

  nn::CallSites call_sites;
  std::vector<std::int64_t> steps;
  device::Recorder recorder;
};

Profiler::Profiler(const ProfileOptions& options, const std::optional<virtual_time::HardwareProfile>& device,
                   ProfiledRun run)
    : options_(options),
      device_(device),
      on_host_(run.executor == device::ExecutorKind::kInline ? OnHost::kAllStreams : OnHost::kCompute),
      collects_(options_.enabled && std::ranges::count(options_.ranks, RankContext::current().rank()) > 0),
      last_step_(std::min(options_.step_end, run.train_iters) - 1) {}

Profiler::~Profiler() = default;

void Profiler::begin_step(std::int64_t step) {
  if (!collects_ || step < options_.step_start || step >= options_.step_end) return;
  if (collected_) {
    collected_->recorder.start();
  } else {
    device::Device& device = device::Device::current();
    const device::IssueLog::Pause unseen(device.log());
    device.synchronize();
    collected_ = std::make_unique<Collected>(device, options_);
  }
  collected_->steps.push_back(step);
}

void Profiler::end_step(std::int64_t step) {
  if (!collected_) return;
  collected_->recorder.stop();
  if (step == last_step_) write_collected();
}

void Profiler::run_stopped() {
  if (collected_) write_collected();
}

void Profiler::write_collected() {
  log_info("profile written to {}", write(collected_->recorder.recording()));
  collected_.reset();
}

// The wall clock's, and virtual time's where there is a device for it.
std::vector<TracedRank> Profiler::traced(const device::Recording& recording, std::int64_t origin_ns) const {
  const int rank = RankContext::current().rank();
  TracedRank wall{.process = 0, .name = fmt::format("rank {}: wall time", rank), .recording = &recording};
  wall.times = wall_times(recording, rank, origin_ns);
  wall.memory = at_wall_time(recording, origin_ns);
  wall.on_host = on_host_;
  wall.steps = collected_->steps;
  if (!device_) return {std::move(wall)};

  TracedRank computed{
      .process = 1, .name = fmt::format("rank {}: virtual time on {}", rank, device_->name), .recording = &recording};
  const virtual_time::RankRecording mine{rank, &recording};
  computed.times = virtual_time::resolve({&mine, 1}, virtual_time::TimeModel(*device_)).ranks.front();
  computed.memory = at_virtual_time(recording, computed.times);
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

std::string Profiler::write(const device::Recording& recording) const {
  const std::int64_t origin_ns = recording.wall.front().issued;  // a step begins with a phase
  const std::vector<TracedRank> ranks = traced(recording, origin_ns);
  const auto& steps = collected_->steps;
  const std::string name = fmt::format("rank{}_steps{}-{}", RankContext::current().rank(), steps.front(), steps.back());
  std::error_code failed;  // shows when the file is made
  fs::create_directories(options_.save_path, failed);
  const fs::path trace = options_.save_path / (name + ".json");
  io::write_text(trace, perfetto_trace(ranks, content_of(options_), about(origin_ns)));
  const Summary summary(recording, ranks[0].times, device_ ? &ranks[1].times : nullptr);
  Json json = about(origin_ns);
  json["kernels"] = summary.kernels();
  json["collectives"] = summary.collectives();
  io::write_text(options_.save_path / (name + ".summary.json"), json.dump(1) + "\n");
  return trace.string();
}

std::optional<std::string> profile_warning(const ProfileOptions& arguments, std::int64_t train_iters) {
  if (!arguments.enabled || train_iters > arguments.step_start) return std::nullopt;
  return fmt::format(
      "--profile-step-start is {}, but --train-iters is {}, so no step is profiled; use a start below {}",
      arguments.step_start, train_iters, train_iters);
}

}  // namespace loom::observe
