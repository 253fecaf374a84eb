// Channel: the ranks among which an operator communicates, and the lane that its calls take.
//
// Lanes    an operator of kDistLane runs on the compute stream, so that all groups may share this lane: a rank's host
//          thread makes the calls of all of them in one order.
// Overlap  an operator is one item that knows its inputs, its result and its channel. A dispatch that is to overlap
//          compute gets a lane and a stream of its own: the item waits for the compute stream's event, and the compute
//          stream for the item's where the result is first read. Gathers of FSDP do the same; no signature changes.
// Threads  a value; its calls belong to the rank's host thread.
#pragma once

#include <memory>

#include "engine/comm/process_group.h"

namespace loom::dist {

inline constexpr comm::Lane kDistLane{4};  // FSDP has lanes 1 to 3

struct Channel {
  std::shared_ptr<comm::ProcessGroup> ranks;
  comm::Lane lane = kDistLane;

  int size() const { return ranks->size(); }
  int rank() const { return ranks->rank(); }
};

}  // namespace loom::dist
