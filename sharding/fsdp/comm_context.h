// CommContext: state that the groups under one root share (the order of the last forward), and state that roots may
// share (share_comm_ctx): the held gather buffer, the reduction in flight. The streams are the device's, the same for
// all roots of a rank.
//
// Order    belongs to each root: the end of one root's backward must not clear another root's prefetch list.
//
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device/device.h"
#include "sharding/fsdp/gather.h"
#include "sharding/fsdp/reduce.h"

namespace loom::sharding {

class ParamGroup;

// The work in flight on the streams.
struct InFlight {
  // Forward: the buffer of the last copied-out gather, held until the next group has its parameters.
  std::optional<HeldGather> held;
  // The last reduction, whose input is freed by the next group's post-backward.
  std::optional<ReduceState> reduction;
};

struct CommContext {
  device::Device* device = nullptr;
  // Groups in the order their forwards ended, with grad mode on; backward prefetches against it. Cleared at the end of
  // backward.
  std::vector<ParamGroup*> post_forward_order;
  std::shared_ptr<InFlight> in_flight;
  std::int64_t landings = 0;  // reductions issued: the order in which offloaded gradients arrive

  // Frees the held buffer; gathers issued from now on come after its copy-out.
  void release_held();
  // Makes compute wait for the reduction in flight and frees its input.
  void wait_for_reduction();
};

}  // namespace loom::sharding
