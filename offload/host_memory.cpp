#include "offload/host_memory.h"

#include <system_error>
#include <utility>

#include "engine/core/error.h"

namespace loom::offload {

void HostMemoryCalls::say_once(Concern concern, const std::string& text) {
  if (!said_[static_cast<std::size_t>(concern)].exchange(true)) say(text);
}

NumaTopology NumaTopology::detect(HostMemoryCalls& calls) { return {calls.nodes(), calls.node_of_this_thread()}; }

HostBuffer::HostBuffer(std::size_t bytes, HostBufferOptions options, HostMemoryCalls& calls)
    : calls_(&calls), bytes_(bytes) {
  if (bytes_ == 0) return;
  data_ = static_cast<std::byte*>(calls_->map(bytes_));
  if (data_ == nullptr) {
    raise<DeviceError>(
        "host buffer: the system has no {} bytes to give; use a smaller batch or fewer ranks on this machine", bytes_);
  }
  place();
  if (options.pin) pin();
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(calls_, other.calls_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(node_, other.node_);
  std::swap(pinned_, other.pinned_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) calls_->unmap(data_, bytes_);
}

void HostBuffer::place() {
  const NumaTopology topology = NumaTopology::detect(*calls_);
  if (!topology.available() || !topology.local_node) {
    calls_->say_once(HostMemoryCalls::Concern::kPlacement,
                     "host memory: this system tells no NUMA nodes; buffers are ordinary memory");
    return;
  }
  if (topology.nodes.size() > 1) {
    if (const int error = calls_->prefer_node(data_, bytes_, *topology.local_node); error != 0) {
      calls_->say_once(HostMemoryCalls::Concern::kPlacement,
                       fmt::format("host memory: placement on NUMA node {} refused ({}); buffers are ordinary memory",
                                   *topology.local_node, std::generic_category().message(error)));
      return;
    }
  }
  node_ = topology.local_node;
}

void HostBuffer::pin() {
  const int error = calls_->lock(data_, bytes_);
  pinned_ = error == 0;
  if (pinned_) return;
  calls_->say_once(HostMemoryCalls::Concern::kPinning,
                   fmt::format("host memory: pinning {} bytes refused ({}); buffers stay pageable; raise ulimit -l",
                               bytes_, std::generic_category().message(error)));
}

}  // namespace loom::offload
