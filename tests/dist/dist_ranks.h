// Ranks as threads with a device each, and the channel of all of them.
#pragma once

#include <chrono>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/recording.h"
#include "engine/dist/channel.h"
#include "engine/launch/run_ranks.h"

namespace loom::test {

struct DistOptions {
  bool dry_run = false;
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};
  device::ExecutorKind executor = device::ExecutorKind::kInline;
};

inline void run_dist(int ranks, const std::function<void(const dist::Channel&, comm::World&)>& main,
                     const DistOptions& options = {}) {
  launch::run_ranks(ranks, {options.timeout}, [&](RankContext& context, comm::World& world) {
    device::Device::install(context, {.executor = options.executor, .dry_run = options.dry_run});
    main(dist::Channel{world.everyone("ep")}, world);
  });
}

// What a plan and a run have to issue alike, an entry a line.
inline std::vector<std::string> events_of(const device::Recording& recording) {
  std::vector<std::string> events;
  for (const device::Entry& e : recording.entries) {
    events.push_back(fmt::format("{} on {}, {} '{}', {} bytes, {} read, {} written, {} flops, {} over links",
                                 static_cast<int>(e.kind), e.stream.name(), recording.text(e.name),
                                 recording.text(e.subject), e.bytes, e.cost.read_bytes, e.cost.written_bytes,
                                 e.cost.flops, e.cost.link_bytes));
  }
  return events;
}

}  // namespace loom::test
