#include "engine/device/memory.h"

#include <algorithm>

#include "engine/core/error.h"

namespace loom::device {
namespace {

constexpr std::int64_t kRounding = 512;
constexpr double kMiB = 1024.0 * 1024.0;

std::int64_t rounded(std::int64_t bytes) { return (bytes + kRounding - 1) / kRounding * kRounding; }

constexpr std::array<std::string_view, kMemCategories> kNames{
    "shard", "gather_buffer", "unsharded", "gradient", "reduce_buffer", "optimizer_state", "activation", "temporary"};

}  // namespace

std::string_view name(MemCategory category) { return kNames[static_cast<std::size_t>(category)]; }

class MemLedger {
 public:
  MemStats stats;

  void add(MemCategory category, std::int64_t bytes) {
    const auto c = static_cast<std::size_t>(category);
    stats.by_category[c] += bytes;
    stats.total_bytes += bytes;
    stats.peak_by_category[c] = std::max(stats.peak_by_category[c], stats.by_category[c]);
    if (stats.total_bytes > stats.peak_bytes) {
      stats.peak_bytes = stats.total_bytes;
      stats.by_category_at_peak = stats.by_category;
    }
  }
};

Block::Block(std::shared_ptr<MemLedger> ledger, std::shared_ptr<std::byte> memory, std::int64_t bytes,
             MemCategory category)
    : ledger_(std::move(ledger)), memory_(std::move(memory)), bytes_(bytes), category_(category) {
  ledger_->add(category_, rounded(bytes_));
}

Block::~Block() { ledger_->add(category_, -rounded(bytes_)); }

void Block::recategorize(MemCategory category) {
  if (category == category_) return;
  ledger_->add(category_, -rounded(bytes_));
  category_ = category;
  ledger_->add(category_, rounded(bytes_));
}

DeviceMemory::DeviceMemory(std::int64_t capacity_bytes, std::shared_ptr<Arena> arena, bool dry_run)
    : capacity_bytes_(capacity_bytes),
      arena_(std::move(arena)),
      dry_run_(dry_run),
      ledger_(std::make_shared<MemLedger>()) {}

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

MemStats DeviceMemory::stats() const { return ledger_->stats; }

void DeviceMemory::reset_peaks() {
  MemStats& stats = ledger_->stats;
  stats.peak_bytes = stats.total_bytes;
  stats.peak_by_category = stats.by_category;
  stats.by_category_at_peak = stats.by_category;
}

void DeviceMemory::check_room(std::int64_t bytes, std::string_view what) const {
  const MemStats& stats = ledger_->stats;
  if (stats.total_bytes + rounded(bytes) <= capacity_bytes_) return;
  std::string table;
  for (int c = 0; c < kMemCategories; ++c) {
    if (stats.by_category[c] == 0) continue;
    table += fmt::format("\n  {:<16}{:>12.1f} MiB", kNames[c], stats.by_category[c] / kMiB);
  }
  if (table.empty()) table = " nothing";
  raise<OutOfMemoryError>("{} needs {:.1f} MiB, the device has {:.1f} of {:.1f} MiB free; in use:{}", what, bytes / kMiB,
                          (capacity_bytes_ - stats.total_bytes) / kMiB, capacity_bytes_ / kMiB, table);
}

}  // namespace loom::device
