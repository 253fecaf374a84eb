// Host memory: buffers on the NUMA node of the rank's device or cores, pinned if requested.
//
// Units      bytes; a node is the kernel's number of a NUMA node.
// Placement  pages prefer the requested node, else the node of the constructing thread's core; a
//            node without memory for this process is replaced by the nearest one with some. One node needs no choice;
//            if the kernel has no NUMA or refuses (containers often do), the buffer is ordinary page-aligned memory.
//            A refused request is reported once.
// Pages      a buffer of kHugePage or more begins at a huge page's boundary and uses huge pages if the system has
//            them (bench/README.md).
// Pinning    mlock: the pages are present and stay. If that is refused (ulimit -l), the buffer stays pageable, and
//            the refusal is reported once.
// Errors     DeviceError if the system has no memory left.
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

// The operating system calls of this layer; tests replace them. "errno" results are 0 on success.
class HostMemoryCalls {
 public:
  HostMemoryCalls() = default;
  HostMemoryCalls(const HostMemoryCalls&) = delete;
  HostMemoryCalls& operator=(const HostMemoryCalls&) = delete;
  virtual ~HostMemoryCalls() = default;

  // The nodes of the machine that this process may use.
  virtual device::HostTopology topology() = 0;
  // Node of the core that the calling thread runs on; nothing if unknown.
  virtual std::optional<int> node_of_this_thread() = 0;
  // Zeroed memory, bytes > 0, at a page's boundary, from kHugePage on at a huge page's; null if there is none.
  virtual void* map(std::size_t bytes) = 0;
  virtual void unmap(void* data, std::size_t bytes) = 0;
  // Pages touched after this call prefer `node`. errno.
  virtual int prefer_node(void* data, std::size_t bytes, int node) = 0;
  // Requests huge pages for pages touched after this call; no promise.
  virtual void prefer_huge_pages(void* data, std::size_t bytes) = 0;
  // errno.
  virtual int lock(void* data, std::size_t bytes) = 0;
  // Bytes that the threads of this process may lock together (ulimit -l); nothing: no limit.
  virtual std::optional<std::size_t> lock_limit() = 0;
  // The node of each page, in the order of `pages`; below 0: an errno, as for a page that was never touched.
  // Empty: the system does not report it.
  virtual std::vector<int> nodes_of_pages(std::span<void* const> pages) = 0;

  // Logs `text` the first time it is called for `concern` on this object; later calls do nothing.
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
  std::vector<int> nodes;         // nodes that give this process memory; empty if the kernel has no NUMA
  std::optional<int> local_node;  // of the core that the thread runs on

  bool available() const { return !nodes.empty(); }
  static NumaTopology detect(HostMemoryCalls& calls = HostMemoryCalls::system());
};

struct HostBufferOptions {
  bool pin = false;
  std::optional<int> node{};  // nothing: the node of the constructing thread's core
};

// The number of a range's pages that were examined, and how many of these are on a node.
struct PageCount {
  int seen = 0;
  int on_node = 0;
};
// Examines at most 256 pages, evenly spaced; pages that were never touched are on no node.
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

  // Null if bytes() is 0.
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // The first bytes() / sizeof(T) elements.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  // The node its pages prefer; none for ordinary memory.
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
