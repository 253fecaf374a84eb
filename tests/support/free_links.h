// A device whose collectives cost nothing, as under PyTorch's fake process group.
#pragma once

#include "engine/virtual_time/profile.h"

namespace loom::test {

inline virtual_time::HardwareProfile without_links(virtual_time::HardwareProfile profile) {
  profile.links.launch_ns = 0;
  profile.links.loss_per_doubling = 0;
  for (virtual_time::LinkLevel& level : profile.links.levels) {
    level.latency_ns = 0;
    level.half_rate_message_bytes = 0;
    level.compute_slowdown = 0;
    level.bandwidth_bytes_per_s = 1e30;
  }
  return profile;
}

}  // namespace loom::test
