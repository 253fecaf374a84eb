#include "engine/device/host_memory.h"

#include <algorithm>
#include <new>

#include "engine/core/rank_context.h"
#include "engine/core/rounding.h"
#include "engine/device/ledger.h"
#include "engine/device/pinned_bytes.h"

namespace loom::device {
namespace {

constexpr std::align_val_t kAlign{64};

class OrdinaryMemory final : public HostAllocator {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool) override {
    auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlign));
    return {memory, [](std::byte* piece) { ::operator delete(piece, kAlign); }};
  }
};

}  // namespace

std::shared_ptr<std::byte> PinnedBytes::counted(std::shared_ptr<std::byte> piece, std::int64_t asked) {
  const std::int64_t bytes = round_up(std::max<std::int64_t>(asked, 1), kPieceBytes);
  const std::int64_t now = count_->now += bytes;
  for (std::int64_t peak = count_->peak; peak < now && !count_->peak.compare_exchange_weak(peak, now);) {
  }
  std::byte* const data = piece.get();
  return {data, [count = count_, piece = std::move(piece), bytes](std::byte*) { count->now -= bytes; }};
}

std::shared_ptr<HostAllocator> HostAllocator::ordinary() { return std::make_shared<OrdinaryMemory>(); }

HostMemory::HostMemory(std::shared_ptr<HostAllocator> allocator, bool dry_run)
    : allocator_(std::move(allocator)), dry_run_(dry_run), ledger_(std::make_shared<MemLedger>(/*rounding=*/1)) {}

std::shared_ptr<Block> HostMemory::allocate(std::int64_t bytes, MemCategory category, bool pinned) {
  auto memory = dry_run_ ? nullptr : allocator_->allocate(static_cast<std::size_t>(bytes), pinned);
  RankContext* const rank = pinned ? RankContext::current_or_null() : nullptr;
  if (rank != nullptr) memory = rank->slot<PinnedBytes>().counted(std::move(memory), bytes);
  return std::make_shared<Block>(ledger_, std::move(memory), bytes, category);
}

MemStats HostMemory::stats() const { return ledger_->stats(); }

void HostMemory::reset_peaks() { ledger_->reset_peaks(); }

}  // namespace loom::device
