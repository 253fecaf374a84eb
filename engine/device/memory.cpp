#include "engine/device/memory.h"

#include "engine/core/error.h"
#include "engine/device/ledger.h"

namespace loom::device {
namespace {

constexpr std::int64_t kRoundingBytes = 512;
constexpr double kMiB = 1024.0 * 1024.0;

constexpr std::array<std::string_view, kMemCategories> kNames{
    "shard", "gather_buffer", "unsharded", "gradient", "reduce_buffer", "optimizer_state", "activation", "temporary"};

}  // namespace

std::string_view name(MemCategory category) { return kNames[static_cast<std::size_t>(category)]; }

Block::Block(std::shared_ptr<MemLedger> ledger, std::shared_ptr<std::byte> memory, std::int64_t bytes,
             MemCategory category)
    : ledger_(std::move(ledger)), memory_(std::move(memory)), bytes_(bytes), category_(category) {
  ledger_->add(category_, bytes_);
}

Block::~Block() { ledger_->remove(category_, bytes_); }

void Block::recategorize(MemCategory category) {
  if (category == category_) return;
  ledger_->remove(category_, bytes_);
  category_ = category;
  ledger_->add(category_, bytes_);
}

DeviceMemory::DeviceMemory(std::int64_t capacity_bytes, std::shared_ptr<Arena> arena, bool dry_run)
    : capacity_bytes_(capacity_bytes),
      arena_(std::move(arena)),
      dry_run_(dry_run),
      ledger_(std::make_shared<MemLedger>(kRoundingBytes)) {}

std::shared_ptr<Block> DeviceMemory::allocate(std::int64_t bytes, MemCategory category, std::string_view what) {
  check_room(bytes, what);
  auto memory = dry_run_ ? nullptr : arena_->take(static_cast<std::size_t>(bytes));
  return std::make_shared<Block>(ledger_, std::move(memory), bytes, category);
}

std::shared_ptr<Block> DeviceMemory::adopt(std::shared_ptr<std::byte> memory, std::int64_t bytes, MemCategory category,
                                           std::string_view what) {
  check_room(bytes, what);
  return std::make_shared<Block>(ledger_, dry_run_ ? nullptr : std::move(memory), bytes, category);
}

MemStats DeviceMemory::stats() const { return ledger_->stats(); }

void DeviceMemory::reset_peaks() { ledger_->reset_peaks(); }

void DeviceMemory::check_room(std::int64_t bytes, std::string_view what) const {
  const MemStats& stats = ledger_->stats();
  if (stats.total_bytes + ledger_->rounded(bytes) <= capacity_bytes_) return;
  std::string table;
  for (int c = 0; c < kMemCategories; ++c) {
    if (stats.by_category[c] == 0) continue;
    table += fmt::format("\n  {:<16}{:>12.1f} MiB", kNames[c], stats.by_category[c] / kMiB);
  }
  if (table.empty()) table = " nothing";
  raise<OutOfMemoryError>("{} needs {:.1f} MiB, the device has {:.1f} of {:.1f} MiB free; in use:{}", what,
                          bytes / kMiB, (capacity_bytes_ - stats.total_bytes) / kMiB, capacity_bytes_ / kMiB, table);
}

}  // namespace loom::device
