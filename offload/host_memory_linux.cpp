#include <numa.h>
#include <numaif.h>
#include <sched.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <linux/capability.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>

#include "engine/core/log.h"
#include "engine/core/rounding.h"
#include "offload/host_memory.h"

namespace loom::offload {
namespace {

void* mapped(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

// CAP_IPC_LOCK: the kernel applies no limit then.
bool may_lock_all() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t capabilities = 0;
    if (word == "CapEff:" && status >> std::hex >> capabilities) return (capabilities >> CAP_IPC_LOCK & 1U) != 0;
  }
  return false;
}

// libnuma prints and may exit in its allocators, so memory is mapped here and only placed through mbind.
class LinuxCalls final : public HostMemoryCalls {
 public:
  device::HostTopology topology() override {
    const std::lock_guard lock(libnuma_);
    return device::HostTopology::detect();
  }

  std::optional<int> node_of_this_thread() override {
    const int core = sched_getcpu();
    if (core < 0 || numa_available() < 0) return std::nullopt;
    const int node = numa_node_of_cpu(core);
    return node < 0 ? std::nullopt : std::optional(node);
  }

  void* map(std::size_t bytes) override {
    if (bytes < kHugePage) return mapped(bytes);
    // A huge page more, of which what lies before its boundary and behind the end goes back.
    auto* const begin = static_cast<std::byte*>(mapped(bytes + kHugePage));
    if (begin == nullptr) return nullptr;
    std::byte* const end = begin + round_up(bytes, kPage) + kHugePage;
    auto* const data = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::size_t>(begin), kHugePage));
    std::byte* const data_end = data + round_up(bytes, kPage);
    if (data > begin) munmap(begin, static_cast<std::size_t>(data - begin));
    if (end > data_end) munmap(data_end, static_cast<std::size_t>(end - data_end));
    return data;
  }

  void unmap(void* data, std::size_t bytes) override { munmap(data, bytes); }

  int prefer_node(void* data, std::size_t bytes, int node) override {
    const std::unique_ptr<bitmask, void (*)(bitmask*)> nodes(numa_allocate_nodemask(), numa_free_nodemask);
    numa_bitmask_setbit(nodes.get(), static_cast<unsigned>(node));
    return mbind(data, bytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) == 0 ? 0 : errno;
  }

  void prefer_huge_pages(void* data, std::size_t bytes) override { madvise(data, bytes, MADV_HUGEPAGE); }

  int lock(void* data, std::size_t bytes) override { return mlock(data, bytes) == 0 ? 0 : errno; }

  std::optional<std::size_t> lock_limit() override {
    rlimit limit{};
    const bool known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if (!known || may_lock_all()) return std::nullopt;
    return limit.rlim_cur;
  }

  std::vector<int> nodes_of_pages(std::span<void* const> pages) override {
    std::vector<void*> asked(pages.begin(), pages.end());
    std::vector<int> found(pages.size());
    if (move_pages(0, asked.size(), asked.data(), /*nodes=*/nullptr, found.data(), 0) != 0) return {};
    return found;
  }

 protected:
  void say(const std::string& text) override { log_warning("{}", text); }

 private:
  std::mutex libnuma_;  // fills its tables at the first call for a node
};

}  // namespace

HostMemoryCalls& HostMemoryCalls::system() {
  static LinuxCalls calls;
  return calls;
}

}  // namespace loom::offload
