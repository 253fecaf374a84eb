// DeviceMemory: the HBM of one emulated device, accounted by category in host order.
//
// Accounting  a block counts from allocate() to the end of its last owner, whatever the executor: the numbers depend on
//             the order of the host's calls alone. Bytes are rounded up to 512, as PyTorch's caching allocator does.
//             The memory itself may live on while a stream item still uses it (Block::keep_alive) and does not count
//             then.
// Dry run     blocks have sizes and no bytes (data() is null): nothing is computed, everything is accounted.
// Allocator   beside the categories, what PyTorch's caching allocator would have allocated and reserved for the same
//             requests (caching_allocator.h), pool by stream. Its segments are what the capacity is spent on.
// Errors      OutOfMemoryError with the table by category when a segment would exceed the capacity; nothing has changed
//             then.
// Threads     the rank's host thread; keep-alives may end on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/device/allocator_trace.h"
#include "engine/device/arena.h"
#include "engine/device/caching_allocator.h"
#include "engine/device/mem_category.h"
#include "engine/device/stream_id.h"

namespace loom::device {

struct MemStats {
  std::int64_t total_bytes = 0;
  std::int64_t peak_bytes = 0;
  CategoryBytes by_category{};          // now
  CategoryBytes peak_by_category{};     // each category's own peak
  CategoryBytes by_category_at_peak{};  // when the total was at its peak
  AllocatorStats allocator{};           // of the device's memory; zero for the host's
};

class MemLedger;

// A piece of an emulated allocator; given back at destruction.
class HeldPiece {
 public:
  HeldPiece() = default;
  HeldPiece(std::shared_ptr<CachingAllocator> allocator, CachingAllocator::Piece* piece)
      : allocator_(std::move(allocator)), piece_(piece) {}
  HeldPiece(HeldPiece&& other) noexcept
      : allocator_(std::move(other.allocator_)), piece_(std::exchange(other.piece_, nullptr)) {}
  ~HeldPiece() { give_back(); }
  HeldPiece(const HeldPiece&) = delete;
  HeldPiece& operator=(const HeldPiece&) = delete;
  HeldPiece& operator=(HeldPiece&&) = delete;

  void give_back() {
    if (piece_ != nullptr) allocator_->free(std::exchange(piece_, nullptr));
  }

 private:
  std::shared_ptr<CachingAllocator> allocator_;
  CachingAllocator::Piece* piece_ = nullptr;  // null: none
};

// A piece of accounted memory; freed (and no longer counted) at destruction.
class Block {
 public:
  Block(std::shared_ptr<MemLedger> ledger, std::shared_ptr<std::byte> memory, std::int64_t bytes, MemCategory category);
  // Holds pieces of the emulated allocators too.
  Block(std::shared_ptr<MemLedger> ledger, std::shared_ptr<std::byte> memory, std::int64_t bytes, MemCategory category,
        HeldPiece piece, HeldPiece compared);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::byte* data() const { return memory_.get(); }  // null in a dry run
  std::int64_t bytes() const { return bytes_; }
  MemCategory category() const { return category_; }
  // Moves the block's bytes to another category.
  void recategorize(MemCategory category);
  // Shares ownership of the memory itself, not of its place in the accounts.
  std::shared_ptr<void> keep_alive() const { return memory_; }

 private:
  const std::shared_ptr<MemLedger> ledger_;
  const std::shared_ptr<std::byte> memory_;
  const std::int64_t bytes_;
  MemCategory category_;
  HeldPiece piece_;
  HeldPiece compared_;
};

class DeviceMemory {
 public:
  static constexpr std::int64_t kRoundingBytes = 512;

  DeviceMemory(std::int64_t capacity_bytes, std::shared_ptr<Arena> arena, bool dry_run,
               const AllocatorSettings& settings = {}, const std::optional<AllocatorSettings>& compared = std::nullopt,
               std::int64_t rounding_bytes = kRoundingBytes);

  // `what` names the purpose in errors ("gather of 'layers.3'"). From the current pool.
  std::shared_ptr<Block> allocate(std::int64_t bytes, MemCategory category, std::string_view what);
  // Counts memory that lives elsewhere (a segment shared between ranks) as this device's own.
  std::shared_ptr<Block> adopt(std::shared_ptr<std::byte> memory, std::int64_t bytes, MemCategory category,
                               std::string_view what);

  bool dry_run() const { return dry_run_; }
  std::int64_t capacity_bytes() const { return allocator_->capacity_bytes(); }
  StreamId current_pool() const { return current_pool_; }
  void set_current_pool(StreamId pool) { current_pool_ = pool; }
  MemStats stats() const;
  // Of the allocator beside this one; none: there is none, or it had no room for a request of the past.
  std::optional<AllocatorStats> compared() const;
  // The present content of the allocator's pools.
  std::vector<PoolStats> pools() const { return allocator_->pools(); }
  // Of the allocator, by address; without the origins of their blocks.
  std::vector<AllocatorSegment> segments() const { return allocator_->segments(); }
  // Peaks restart from the present values.
  void reset_peaks();
  // Called at every change of the allocator; of an allocation with what it is for, else with nothing. Empty: no call.
  // Objects that it refers to must outlive the memory's blocks, or the call that sets another observer.
  void observe_allocator(std::function<void(const AllocatorChange&, MemCategory, std::string_view)> observer);
  // Called after every change of the allocated bytes; empty: no call. Objects that it refers to must outlive it.
  void observe_changes(std::function<void()> observer);

 private:
  std::shared_ptr<Block> make_block(std::int64_t bytes, MemCategory category, std::string_view what,
                                    const std::function<std::shared_ptr<std::byte>()>& memory);
  [[noreturn]] void raise_out_of_memory(std::int64_t bytes, std::string_view what) const;

  HeldPiece compared_piece(std::int64_t bytes, MemCategory category);

  const std::shared_ptr<CachingAllocator> allocator_;
  std::shared_ptr<CachingAllocator> compared_;  // null: none
  StreamId current_pool_ = StreamId::kCompute;
  const std::shared_ptr<Arena> arena_;
  const bool dry_run_;
  const std::shared_ptr<MemLedger> ledger_;
  // Of the present call of make_block().
  struct {
    MemCategory category = MemCategory::kTemporary;
    std::string_view what;
  } requested_;
};

// While it lives, memory comes from the pool of `pool`.
class PoolScope {
 public:
  PoolScope(DeviceMemory& memory, StreamId pool) : memory_(memory), before_(memory.current_pool()) {
    memory_.set_current_pool(pool);
  }
  ~PoolScope() { memory_.set_current_pool(before_); }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  DeviceMemory& memory_;
  const StreamId before_;
};

}  // namespace loom::device
