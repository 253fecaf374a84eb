// Host memory: buffers on the NUMA node of the rank's device or cores, pinned when asked.
//
// Units      bytes; a node is the kernel's number of a NUMA node.
// Placement  pages prefer the node that is asked for, else that of the core that the constructing thread runs on; a
//            node without memory for this process is replaced by the nearest that has some. One node needs nothing;
//            where the kernel has no NUMA or refuses (containers often do), the buffer is ordinary page-aligned memory.
//            What was not done as asked is said once.
// Pages      a buffer of kHugePage or more begins at a huge page's boundary and is of huge pages where the system gives
//            them (bench/README.md).
// Pinning    mlock: the pages are present and stay. Where that is refused (ulimit -l), the buffer stays pageable, and
//            that is said once.
// Errors     DeviceError when the system has no memory to give.
// Threads    a buffer belongs to one thread at a time; HostMemoryCalls may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device/host_topology.h"

namespace loom::offload {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// What this floor asks of the operating system; tests bring their own. "errno" results are 0 when granted.
class HostMemoryCalls {
 public:
  HostMemoryCalls() = default;
  HostMemoryCalls(const HostMemoryCalls&) = delete;
  HostMemoryCalls& operator=(const HostMemoryCalls&) = delete;
  virtual ~HostMemoryCalls() = default;

  // The nodes of the machine as this process may use them.
  virtual device::HostTopology topology() = 0;
  // Node of the core that the calling thread runs on; nothing when unknown.
  virtual std::optional<int> node_of_this_thread() = 0;
  // Zeroed memory, bytes > 0, at a page's boundary, from kHugePage on at a huge page's; null when there is none.
  virtual void* map(std::size_t bytes) = 0;
  virtual void unmap(void* data, std::size_t bytes) = 0;
  // Pages touched from now on prefer `node`. errno.
  virtual int prefer_node(void* data, std::size_t bytes, int node) = 0;
  // Asks for huge pages where they are touched from now on; no promise.
  virtual void prefer_huge_pages(void* data, std::size_t bytes) = 0;
  // errno.
  virtual int lock(void* data, std::size_t bytes) = 0;
  // Bytes that the threads of this process may lock together (ulimit -l); nothing: no limit.
  virtual std::optional<std::size_t> lock_limit() = 0;
  // The node that each page is on, in the order of `pages`; below 0: an errno, as for a page that was never touched.
  // Empty: the system does not say.
  virtual std::vector<int> nodes_of_pages(std::span<void* const> pages) = 0;

  // Says `text` the first time it is called for `concern` on this object; later calls do nothing.
  enum class Concern { kPlacement, kNode, kPinning, kPages };
  void say_once(Concern concern, const std::string& text);

  // Linux through libnuma.
  static HostMemoryCalls& system();

 protected:
  virtual void say(const std::string& text) = 0;

 private:
  std::atomic<bool> said_[4] = {};
};

// The machine's NUMA nodes as the calling thread sees them.
struct NumaTopology {
  std::vector<int> nodes;         // that give this process memory; empty when the kernel has no NUMA
  std::optional<int> local_node;  // of the core that the thread runs on

  bool available() const { return !nodes.empty(); }
  static NumaTopology detect(HostMemoryCalls& calls = HostMemoryCalls::system());
};

struct HostBufferOptions {
  bool pin = false;
  std::optional<int> node{};  // nothing: that of the constructing thread's core
};

// How many of a range's pages were looked at, and how many of these are on a node.
struct PageCount {
  int seen = 0;
  int on_node = 0;
};
// Of at most 256 pages, evenly spaced; pages that were never touched are on no node.
PageCount count_pages(void* data, std::size_t bytes, int node, HostMemoryCalls& calls = HostMemoryCalls::system());

// Zeroed page-aligned host memory; owns it. Movable.
class HostBuffer {
 public:
  HostBuffer() = default;
  // `calls` outlives the buffer.
  explicit HostBuffer(std::size_t bytes, HostBufferOptions options = {},
                      HostMemoryCalls& calls = HostMemoryCalls::system());
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  // Null when bytes() is 0.
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // The first bytes() / sizeof(T) elements.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  // The node its pages prefer; nothing for ordinary memory.
  std::optional<int> node() const { return node_; }
  bool pinned() const { return pinned_; }

 private:
  void place(std::optional<int> asked);
  std::optional<int> chosen_node(const device::HostTopology& topology, std::optional<int> asked) const;
  void pin();

  HostMemoryCalls* calls_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::optional<int> node_;
  bool pinned_ = false;
};

}  // namespace loom::offload
