#include "engine/device/memory.h"

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/ledger.h"

namespace loom::device {
namespace {

constexpr std::array<std::string_view, kLifeClasses> kLifeNames{"static", "step", "activation", "temporary",
                                                                "communication"};

}  // namespace

std::string_view name(LifeClass life) { return kLifeNames[static_cast<std::size_t>(life)]; }

Block::Block(std::shared_ptr<MemLedger> ledger, std::shared_ptr<std::byte> memory, std::int64_t bytes,
             MemCategory category)
    : ledger_(std::move(ledger)), memory_(std::move(memory)), bytes_(bytes), category_(category) {
  ledger_->add(category_, bytes_);
}

Block::Block(std::shared_ptr<MemLedger> ledger, std::shared_ptr<std::byte> memory, std::int64_t bytes,
             MemCategory category, HeldPiece piece, HeldPiece compared)
    : ledger_(std::move(ledger)),
      memory_(std::move(memory)),
      bytes_(bytes),
      category_(category),
      piece_(std::move(piece)),
      compared_(std::move(compared)) {
  ledger_->add(category_, bytes_);
}

Block::~Block() {  // the ledger's observer sees both without the block
  piece_.give_back();
  compared_.give_back();
  ledger_->remove(category_, bytes_);
}

void Block::recategorize(MemCategory category) {
  if (category == category_) return;
  ledger_->remove(category_, bytes_);
  category_ = category;
  ledger_->add(category_, bytes_);
}

DeviceMemory::DeviceMemory(std::int64_t capacity_bytes, std::shared_ptr<Arena> arena, bool dry_run,
                           const AllocatorSettings& settings, const std::optional<AllocatorSettings>& compared,
                           std::int64_t rounding_bytes)
    : allocator_(std::make_shared<CachingAllocator>(capacity_bytes, settings)),
      compared_(compared ? std::make_shared<CachingAllocator>(capacity_bytes, *compared) : nullptr),
      arena_(std::move(arena)),
      dry_run_(dry_run),
      ledger_(std::make_shared<MemLedger>(rounding_bytes)) {}

std::shared_ptr<Block> DeviceMemory::allocate(std::int64_t bytes, MemCategory category, std::string_view what) {
  return make_block(bytes, category, what, [&] { return arena_->take(static_cast<std::size_t>(bytes)); });
}

std::shared_ptr<Block> DeviceMemory::adopt(std::shared_ptr<std::byte> memory, std::int64_t bytes, MemCategory category,
                                           std::string_view what) {
  return make_block(bytes, category, what, [&] { return std::move(memory); });
}

std::shared_ptr<Block> DeviceMemory::make_block(std::int64_t bytes, MemCategory category, std::string_view what,
                                                const std::function<std::shared_ptr<std::byte>()>& memory) {
  requested_ = {category, what};
  CachingAllocator::Piece* piece = bytes == 0 ? nullptr : allocator_->allocate(bytes, current_pool_, category.life());
  if (bytes > 0 && piece == nullptr) raise_out_of_memory(bytes, what);
  HeldPiece held(allocator_, piece);
  return std::make_shared<Block>(ledger_, dry_run_ ? nullptr : memory(), bytes, category, std::move(held),
                                 compared_piece(bytes, category));
}

// What has no room there ends the comparison.
HeldPiece DeviceMemory::compared_piece(std::int64_t bytes, MemCategory category) {
  if (bytes == 0 || compared_ == nullptr) return {};
  CachingAllocator::Piece* piece = compared_->allocate(bytes, current_pool_, category.life());
  HeldPiece held(compared_, piece);
  if (piece == nullptr) compared_ = nullptr;
  return held;
}

std::optional<AllocatorStats> DeviceMemory::compared() const {
  return compared_ == nullptr ? std::nullopt : std::optional(compared_->stats());
}

MemStats DeviceMemory::stats() const {
  MemStats stats = ledger_->stats();
  stats.allocator = allocator_->stats();
  return stats;
}

void DeviceMemory::reset_peaks() {
  ledger_->reset_peaks();
  allocator_->reset_peaks();
  if (compared_ != nullptr) compared_->reset_peaks();
}

void DeviceMemory::observe_allocator(
    std::function<void(const AllocatorChange&, MemCategory, std::string_view)> observer) {
  if (!observer) return allocator_->observe({});
  allocator_->observe([this, observer = std::move(observer)](const AllocatorChange& change) {
    const bool is_alloc = change.action == AllocatorAction::kAlloc;
    observer(change, is_alloc ? requested_.category : MemCategory::kTemporary,
             is_alloc ? requested_.what : std::string_view{});
  });
}

void DeviceMemory::observe_changes(std::function<void()> observer) { ledger_->observe(std::move(observer)); }

void DeviceMemory::raise_out_of_memory(std::int64_t bytes, std::string_view what) const {
  const MemStats stats = this->stats();
  std::string table;
  const auto line = [&](std::string_view name, std::int64_t in_use) {
    if (in_use > 0) table += fmt::format("\n  {:<16}{:>12.1f} MiB", name, mib(in_use));
  };
  auto name = ledger_->names().begin();
  for (const std::int64_t in_use : stats.by_category) line(*name++, in_use);
  if (table.empty()) table = " nothing";
  line("reserved", stats.allocator.reserved_bytes);
  const std::int64_t capacity = capacity_bytes();
  raise<OutOfMemoryError>("{} needs {:.1f} MiB, the device has {:.1f} of {:.1f} MiB free; in use:{}", what, mib(bytes),
                          mib(capacity - stats.allocator.reserved_bytes), mib(capacity), table);
}

}  // namespace loom::device
