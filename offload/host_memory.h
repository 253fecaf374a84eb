// Host memory: buffers on the NUMA node of the rank's cores, pinned when asked.
//
// Units      bytes; a node is the kernel's number of a NUMA node.
// Placement  pages prefer the node of the core that the constructing thread runs on. A machine with one node needs no
//            placement; where the kernel has no NUMA or refuses (containers often do), the buffer is ordinary
//            page-aligned memory, and that is said once.
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

namespace loom::offload {

// What this floor asks of the operating system; tests bring their own. "errno" results are 0 when granted.
class HostMemoryCalls {
 public:
  HostMemoryCalls() = default;
  HostMemoryCalls(const HostMemoryCalls&) = delete;
  HostMemoryCalls& operator=(const HostMemoryCalls&) = delete;
  virtual ~HostMemoryCalls() = default;

  // Nodes with memory, ascending; empty when the kernel has no NUMA.
  virtual std::vector<int> nodes() = 0;
  // Node of the core that the calling thread runs on; nothing when unknown.
  virtual std::optional<int> node_of_this_thread() = 0;
  // Zeroed page-aligned memory, bytes > 0; null when there is none.
  virtual void* map(std::size_t bytes) = 0;
  virtual void unmap(void* data, std::size_t bytes) = 0;
  // Pages touched from now on prefer `node`. errno.
  virtual int prefer_node(void* data, std::size_t bytes, int node) = 0;
  // errno.
  virtual int lock(void* data, std::size_t bytes) = 0;

  // Says `text` the first time it is called for `concern` on this object; later calls do nothing.
  enum class Concern { kPlacement, kPinning };
  void say_once(Concern concern, const std::string& text);

  // Linux through libnuma.
  static HostMemoryCalls& system();

 protected:
  virtual void say(const std::string& text) = 0;

 private:
  std::atomic<bool> said_[2] = {};
};

// The machine's NUMA nodes as the calling thread sees them.
struct NumaTopology {
  std::vector<int> nodes;         // with memory; empty when the kernel has no NUMA
  std::optional<int> local_node;  // of the core that the thread runs on

  bool available() const { return !nodes.empty(); }
  static NumaTopology detect(HostMemoryCalls& calls = HostMemoryCalls::system());
};

struct HostBufferOptions {
  bool pin = false;
};

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
  void place();
  void pin();

  HostMemoryCalls* calls_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::optional<int> node_;
  bool pinned_ = false;
};

}  // namespace loom::offload
