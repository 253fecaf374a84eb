// Ranks as threads with a device each, and the channel of all of them.
#pragma once

#include <chrono>
#include <functional>

#include "engine/device/device.h"
#include "engine/dist/channel.h"
#include "engine/launch/run_ranks.h"

namespace loom::test {

struct DistOptions {
  bool dry_run = false;
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};
};

inline void run_dist(int ranks, const std::function<void(const dist::Channel&, comm::World&)>& main,
                     const DistOptions& options = {}) {
  launch::run_ranks(ranks, {options.timeout}, [&](RankContext& context, comm::World& world) {
    device::Device::install(context, {.dry_run = options.dry_run});
    main(dist::Channel{world.everyone("ep")}, world);
  });
}

}  // namespace loom::test
