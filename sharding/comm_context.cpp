#include "sharding/comm_context.h"

namespace loom::sharding {

using device::StreamId;

void CommContext::release_held() {
  if (!held) return;
  device->stream(StreamId::kGatherCopyIn).wait(held->copied_out);
  device->stream(StreamId::kGather).wait(held->copied_out);
  held.reset();
}

void CommContext::wait_for_reduction() {
  if (!reduction) return;
  device->stream(StreamId::kCompute).wait(reduction->done);
  reduction.reset();
}

}  // namespace loom::sharding
