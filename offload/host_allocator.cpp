#include "offload/host_allocator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/rounding.h"
#include "offload/pinned_pool.h"

namespace loom::offload {
namespace {

class BufferAllocator final : public device::HostAllocator {
 public:
  BufferAllocator(const HostAllocatorOptions& options, HostMemoryCalls& calls)
      : options_(options), calls_(calls), pool_(std::make_shared<Pool>()) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool pinned) override {
    const Kind kind{std::max<std::size_t>(bytes, 1), pinned};
    if (pinned) {
      if (auto piece = from_pinned_pool(kind.first)) return piece;
    }
    HostBuffer buffer = pool_->take(kind);
    if (buffer.data() == nullptr) buffer = new_buffer(kind);
    std::byte* data = buffer.data();
    return {data, GiveBack{pool_, kind, std::make_shared<HostBuffer>(std::move(buffer))}};
  }

 private:
  using Kind = std::pair<std::size_t, bool>;  // bytes, requested as pinned

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

  std::shared_ptr<std::byte> from_pinned_pool(std::size_t bytes) {
    if (options_.pinned_pool_bytes == 0) return nullptr;
    if (!pinned_pool_) {
      pinned_pool_ =
          std::make_shared<PinnedPool>(options_.pinned_pool_bytes, options_.node, options_.ranks_of_process, calls_);
      asked_ = pinned_pool_->bytes();
      pinned_ = pinned_pool_->pinned_bytes();
    }
    auto piece = pinned_pool_->take(bytes);
    if (!piece) log_debug("{}host memory: the pool has no place for {} bytes", rank_prefix(), bytes);
    return piece;
  }

  HostBuffer new_buffer(const Kind& kind) {
    const auto& [bytes, to_pin] = kind;
    HostBuffer buffer(bytes, {.pin = to_pin && is_within_share(bytes), .node = options_.node}, calls_);
    if (!to_pin) return buffer;
    asked_ += bytes;
    if (buffer.pinned()) {
      pinned_ += round_up(bytes, kPage);
    } else {
      say_partly_pinned(asked_, pinned_, options_.ranks_of_process, calls_);
    }
    return buffer;
  }

  bool is_within_share(std::size_t bytes) const {
    const auto share = lock_share(options_.ranks_of_process, calls_);
    return !share || pinned_ + round_up(bytes, kPage) <= *share;
  }

  const HostAllocatorOptions options_;
  HostMemoryCalls& calls_;
  const std::shared_ptr<Pool> pool_;
  std::shared_ptr<PinnedPool> pinned_pool_;
  std::size_t asked_ = 0;   // to be pinned, of the mapped bytes
  std::size_t pinned_ = 0;  // of these
};

}  // namespace

std::shared_ptr<device::HostAllocator> make_host_allocator(const HostAllocatorOptions& options,
                                                           HostMemoryCalls& calls) {
  return std::make_shared<BufferAllocator>(options, calls);
}

std::shared_ptr<device::HostAllocator> make_host_allocator(HostMemoryCalls& calls) {
  return make_host_allocator({}, calls);
}

}  // namespace loom::offload
