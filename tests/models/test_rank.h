// The one rank of a test: a context with an inline device, current on this thread.
#pragma once

#include "engine/core/rank_context.h"
#include "engine/device/device.h"

namespace loom::test {

struct TestRank {
  RankContext context{0, 1};
  RankScope scope{context};
  device::Device& device = device::Device::install(context, {});
};

}  // namespace loom::test
