#include "sharding/fsdp/comm_context.h"

#include "sharding/streams.h"

namespace loom::sharding {

using device::StreamId;

void CommContext::release_held() {
  if (!in_flight->held) return;
  device->stream(kGatherCopyInStream).wait(in_flight->held->copied_out);
  device->stream(kGatherStream).wait(in_flight->held->copied_out);
  in_flight->held.reset();
}

void CommContext::wait_for_reduction() {
  if (!in_flight->reduction) return;
  device->stream(StreamId::kCompute).wait(in_flight->reduction->done);
  in_flight->reduction.reset();
}

}  // namespace loom::sharding
