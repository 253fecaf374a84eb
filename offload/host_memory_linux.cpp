#include <numa.h>
#include <numaif.h>
#include <sched.h>

#include <cerrno>
#include <memory>
#include <sys/mman.h>

#include "engine/core/log.h"
#include "offload/host_memory.h"

namespace loom::offload {
namespace {

// libnuma prints and may exit in its allocators, so memory is mapped here and only placed through mbind.
class LinuxCalls final : public HostMemoryCalls {
 public:
  std::vector<int> nodes() override {
    std::vector<int> nodes;
    if (numa_available() < 0) return nodes;
    for (int node = 0; node <= numa_max_node(); ++node) {
      if (numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node)) != 0) nodes.push_back(node);
    }
    return nodes;
  }

  std::optional<int> node_of_this_thread() override {
    const int core = sched_getcpu();
    if (core < 0 || numa_available() < 0) return std::nullopt;
    const int node = numa_node_of_cpu(core);
    return node < 0 ? std::nullopt : std::optional(node);
  }

  void* map(std::size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
  }

  void unmap(void* data, std::size_t bytes) override { munmap(data, bytes); }

  int prefer_node(void* data, std::size_t bytes, int node) override {
    const std::unique_ptr<bitmask, void (*)(bitmask*)> nodes(numa_allocate_nodemask(), numa_free_nodemask);
    numa_bitmask_setbit(nodes.get(), static_cast<unsigned>(node));
    return mbind(data, bytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) == 0 ? 0 : errno;
  }

  int lock(void* data, std::size_t bytes) override { return mlock(data, bytes) == 0 ? 0 : errno; }

 protected:
  void say(const std::string& text) override { logger().warn("{}", text); }
};

}  // namespace

HostMemoryCalls& HostMemoryCalls::system() {
  static LinuxCalls calls;
  return calls;
}

}  // namespace loom::offload
