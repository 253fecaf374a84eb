#include "engine/device/host_memory.h"

#include <new>

#include "engine/device/ledger.h"

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

std::shared_ptr<HostAllocator> HostAllocator::ordinary() { return std::make_shared<OrdinaryMemory>(); }

HostMemory::HostMemory(std::shared_ptr<HostAllocator> allocator, bool dry_run)
    : allocator_(std::move(allocator)), dry_run_(dry_run), ledger_(std::make_shared<MemLedger>(/*rounding=*/1)) {}

std::shared_ptr<Block> HostMemory::allocate(std::int64_t bytes, MemCategory category, bool pinned) {
  auto memory = dry_run_ ? nullptr : allocator_->allocate(static_cast<std::size_t>(bytes), pinned);
  return std::make_shared<Block>(ledger_, std::move(memory), bytes, category);
}

MemStats HostMemory::stats() const { return ledger_->stats(); }

void HostMemory::reset_peaks() { ledger_->reset_peaks(); }

}  // namespace loom::device
