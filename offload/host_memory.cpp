#include "offload/host_memory.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "engine/core/error.h"

namespace loom::offload {

void HostMemoryCalls::say_once(Concern concern, const std::string& text) {
  if (!said_[static_cast<std::size_t>(concern)].exchange(true)) say(text);
}

NumaTopology NumaTopology::detect(HostMemoryCalls& calls) {
  NumaTopology found{.nodes = {}, .local_node = calls.node_of_this_thread()};
  const device::HostTopology topology = calls.topology();
  if (!topology.available) return found;
  for (const device::HostNode& node : topology.nodes) {
    if (node.gives_memory) found.nodes.push_back(node.number);
  }
  return found;
}

PageCount count_pages(void* data, std::size_t bytes, int node, HostMemoryCalls& calls) {
  constexpr std::size_t kMost = 256;
  const std::size_t pages = bytes / kPage;
  const std::size_t seen = std::min(pages, kMost);
  std::vector<void*> asked;
  for (std::size_t i = 0; i < seen; ++i) asked.push_back(static_cast<std::byte*>(data) + i * pages / seen * kPage);
  PageCount count;
  for (const int found : calls.nodes_of_pages(asked)) {
    ++count.seen;
    count.on_node += found == node ? 1 : 0;
  }
  return count;
}

HostBuffer::HostBuffer(std::size_t bytes, HostBufferOptions options, HostMemoryCalls& calls)
    : calls_(&calls), bytes_(bytes) {
  if (bytes_ == 0) return;
  data_ = static_cast<std::byte*>(calls_->map(bytes_));
  if (data_ == nullptr) {
    raise<DeviceError>(
        "host buffer: the system has no {} bytes to give; use a smaller batch or fewer ranks on this machine", bytes_);
  }
  if (bytes_ >= kHugePage) calls_->prefer_huge_pages(data_, bytes_);
  place(options.node);
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

// The requested node, or one near it, within this machine and this process.
std::optional<int> HostBuffer::chosen_node(const device::HostTopology& topology, std::optional<int> asked) const {
  const std::optional<int> local = calls_->node_of_this_thread();
  const bool known = !asked || topology.node(*asked) != nullptr;
  const std::optional<int> wanted = known && asked ? asked : local;
  if (!wanted) return std::nullopt;
  const std::optional<int> chosen = topology.nearest_with_memory(*wanted);
  if (!known) {
    calls_->say_once(
        HostMemoryCalls::Concern::kNode,
        fmt::format("host memory: this machine has no NUMA node {}, the requested node of the rank's device; "
                    "buffers are on node {}, of the rank's cores",
                    *asked, chosen.value_or(*wanted)));
  } else if (chosen && chosen != wanted) {
    calls_->say_once(
        HostMemoryCalls::Concern::kNode,
        fmt::format("host memory: NUMA node {} has no memory for this process; buffers are on node {}, the "
                    "nearest that has",
                    *wanted, *chosen));
  }
  return chosen;
}

void HostBuffer::place(std::optional<int> asked) {
  const device::HostTopology topology = calls_->topology();
  const std::optional<int> node = topology.available ? chosen_node(topology, asked) : std::nullopt;
  if (!node) {
    calls_->say_once(HostMemoryCalls::Concern::kPlacement,
                     "host memory: this system reports no NUMA nodes; buffers are ordinary memory");
    return;
  }
  if (topology.nodes.size() > 1) {
    if (const int error = calls_->prefer_node(data_, bytes_, *node); error != 0) {
      calls_->say_once(HostMemoryCalls::Concern::kPlacement,
                       fmt::format("host memory: placement on NUMA node {} refused ({}); buffers are ordinary memory",
                                   *node, std::generic_category().message(error)));
      return;
    }
  }
  node_ = node;
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
