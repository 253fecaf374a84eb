#include "offload/host_allocator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace loom::offload {
namespace {

class BufferAllocator final : public device::HostAllocator {
 public:
  explicit BufferAllocator(HostMemoryCalls& calls) : calls_(calls), pool_(std::make_shared<Pool>()) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool pinned) override {
    const Kind kind{std::max<std::size_t>(bytes, 1), pinned};
    HostBuffer buffer = pool_->take(kind);
    if (buffer.data() == nullptr) buffer = HostBuffer(kind.first, {.pin = pinned}, calls_);
    std::byte* data = buffer.data();
    return {data, GiveBack{pool_, kind, std::make_shared<HostBuffer>(std::move(buffer))}};
  }

 private:
  using Kind = std::pair<std::size_t, bool>;  // bytes, asked to be pinned

  class Pool {
   public:
    // Without bytes when there is none.
    HostBuffer take(const Kind& kind) {
      const std::lock_guard lock(mutex_);
      std::vector<HostBuffer>& free = free_[kind];
      if (free.empty()) return {};
      HostBuffer buffer = std::move(free.back());
      free.pop_back();
      return buffer;
    }
    void give_back(const Kind& kind, HostBuffer buffer) {
      const std::lock_guard lock(mutex_);
      free_[kind].push_back(std::move(buffer));
    }

   private:
    std::mutex mutex_;
    std::map<Kind, std::vector<HostBuffer>> free_;
  };

  struct GiveBack {
    std::shared_ptr<Pool> pool;
    Kind kind;
    std::shared_ptr<HostBuffer> buffer;
    void operator()(std::byte*) const { pool->give_back(kind, std::move(*buffer)); }
  };

  HostMemoryCalls& calls_;
  const std::shared_ptr<Pool> pool_;
};

}  // namespace

std::shared_ptr<device::HostAllocator> make_host_allocator(HostMemoryCalls& calls) {
  return std::make_shared<BufferAllocator>(calls);
}

}  // namespace loom::offload
