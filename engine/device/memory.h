// DeviceMemory: the HBM of one emulated device, accounted by category in host order.
//
// Accounting  a block counts from allocate() to the end of its last owner, whatever the executor: the numbers depend on
//             the order of the host's calls alone. Bytes are rounded up to 512, as PyTorch's caching allocator does.
//             The memory itself may live on while a stream item still uses it (Block::keep_alive) and does not count
//             then.
// Dry run     blocks have sizes and no bytes (data() is null): nothing is computed, everything is accounted.
// Errors      OutOfMemoryError with the table by category when capacity would be exceeded; nothing has changed then.
// Threads     the rank's host thread; keep-alives may end on any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/device/arena.h"

namespace loom::device {

enum class MemCategory : std::uint8_t {
  kShard,         // this rank's rows of parameters
  kGatherBuffer,  // input and output of all-gathers in flight
  kUnsharded,     // full parameters
  kGradient,      // gradients of parameters, full or sharded
  kReduceBuffer,  // input and output of reductions in flight
  kOptimizerState,
  kActivation,  // outputs of operators, their gradients, inputs
  kTemporary,   // workspace inside an operator
};
inline constexpr int kMemCategories = 8;
// "shard", "gather_buffer", ... as in metrics.jsonl.
std::string_view name(MemCategory category);

using CategoryBytes = std::array<std::int64_t, kMemCategories>;

struct MemStats {
  std::int64_t total_bytes = 0;
  std::int64_t peak_bytes = 0;
  CategoryBytes by_category{};          // now
  CategoryBytes peak_by_category{};     // each category's own peak
  CategoryBytes by_category_at_peak{};  // when the total was at its peak
};

class MemLedger;

// A piece of accounted memory; freed (and no longer counted) at destruction.
class Block {
 public:
  Block(std::shared_ptr<MemLedger> ledger, std::shared_ptr<std::byte> memory, std::int64_t bytes, MemCategory category);
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
};

class DeviceMemory {
 public:
  DeviceMemory(std::int64_t capacity_bytes, std::shared_ptr<Arena> arena, bool dry_run);

  // `what` names the purpose in errors ("gather of 'layers.3'").
  std::shared_ptr<Block> allocate(std::int64_t bytes, MemCategory category, std::string_view what);
  // Counts memory that lives elsewhere (a segment shared between ranks) as this device's own.
  std::shared_ptr<Block> adopt(std::shared_ptr<std::byte> memory, std::int64_t bytes, MemCategory category,
                               std::string_view what);

  bool dry_run() const { return dry_run_; }
  std::int64_t capacity_bytes() const { return capacity_bytes_; }
  MemStats stats() const;
  // Peaks restart from the present values.
  void reset_peaks();

 private:
  void check_room(std::int64_t bytes, std::string_view what) const;

  const std::int64_t capacity_bytes_;
  const std::shared_ptr<Arena> arena_;
  const bool dry_run_;
  const std::shared_ptr<MemLedger> ledger_;
};

}  // namespace loom::device
