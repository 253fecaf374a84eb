#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/huge_pages.h"
#include "engine/core/rounding.h"
#include "engine/device/arena.h"
#include "engine/device/intervals.h"

namespace loom::device {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kPage = 4096;
// Pieces up to this size are cut from chunks by size classes, larger ones from the arena's address space by pages.
constexpr std::size_t kLargestSmall = std::size_t{64} << 10;
constexpr std::size_t kChunk = std::size_t{1} << 20;
// The least address space that is reserved at a time; it costs nothing before it is touched.
constexpr std::size_t kRegion = std::size_t{256} << 20;
// Free pieces that are too small for a request may add up to this much before their pages are moved.
constexpr std::size_t kScattered = std::size_t{16} << 20;

// Size classes in steps of an eighth of a power of two.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 8 * kAlign) return std::max(round_up(bytes, kAlign), kAlign);
  return round_up(round_up(bytes, std::bit_floor(bytes - 1) / 8), kAlign);
}

std::byte* aligned_up(void* memory, std::size_t unit) {
  return reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::size_t>(memory), unit));
}

std::byte* aligned_down(std::byte* memory, std::size_t unit) {
  return memory - reinterpret_cast<std::size_t>(memory) % unit;
}

// Untouched address space of `bytes`, whole huge pages from the boundary of one on; unmapped at destruction.
class Region {
 public:
  explicit Region(std::size_t bytes) : bytes_(bytes), mapped_bytes_(bytes + kHugePage) {
    memory_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED)
      raise<DeviceError>(
          "the machine has no {} bytes left for the memory of a device; use fewer ranks a machine, a "
          "smaller batch or a smaller model",
          bytes);
    madvise(space().begin, bytes, MADV_HUGEPAGE);
  }
  ~Region() { munmap(memory_, mapped_bytes_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Interval space() const { return {aligned_up(memory_, kHugePage), bytes_}; }

 private:
  const std::size_t bytes_;
  const std::size_t mapped_bytes_;
  void* memory_;
};

void touch(const Interval& piece) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(piece.begin, piece.bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  for (std::size_t offset = 0; offset < piece.bytes; offset += kPage) piece.begin[offset] = std::byte{0};
}

// The last huge pages that are entirely in `piece`, up to `bytes`.
Interval last_huge_pages(const Interval& piece, std::size_t bytes) {
  std::byte* const first = aligned_up(piece.begin, kHugePage);
  std::byte* const end = aligned_down(piece.end(), kHugePage);
  if (end <= first) return {};
  const std::size_t taken = std::min(static_cast<std::size_t>(end - first), bytes);
  return {end - taken, taken};
}

// Moves the pages of `from` to the addresses from `to` on; `from` stays mapped, untouched. Nothing is copied.
// False where the system cannot: before Linux 5.7, or with more mappings than it allows.
bool move_pages(const Interval& from, std::byte* to) {
#ifdef MREMAP_DONTUNMAP
  return mremap(from.begin, from.bytes, from.bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == to;
#else
  return false;
#endif
}

class PoolArena final : public Arena {
 public:
  std::shared_ptr<std::byte> take(std::size_t bytes) override {
    const std::size_t size = bytes <= kLargestSmall ? size_class(bytes) : round_up(bytes, kPage);
    auto self = std::static_pointer_cast<PoolArena>(shared_from_this());
    return {take_piece(size), [self, size](std::byte* piece) { self->give_back(piece, size); }};
  }

  std::size_t system_bytes() const override {
    const std::lock_guard lock(mutex_);
    return system_bytes_;
  }

 private:
  std::byte* take_piece(std::size_t size) {
    const std::lock_guard lock(mutex_);
    return size <= kLargestSmall ? take_small(size) : take_pages(size);
  }

  std::byte* take_small(std::size_t size) {
    std::vector<std::byte*>& free_pieces = free_small_[size];
    if (!free_pieces.empty()) {
      std::byte* piece = free_pieces.back();
      free_pieces.pop_back();
      return piece;
    }
    if (chunk_.bytes < size) chunk_ = {take_pages(kChunk), kChunk};
    std::byte* piece = chunk_.begin;
    chunk_ = {piece + size, chunk_.bytes - size};
    return piece;
  }

  std::byte* take_pages(std::size_t size) {
    // A rest below this behind a piece is too small for another piece, and its pages cannot be moved.
    const std::size_t least_rest = std::min(kHugePage, size / 4);
    if (std::byte* piece = free_.take(size, least_rest)) return piece;
    const Interval space = take_untouched(round_up(size, kHugePage));
    // A free piece that ends where the space begins is the first part of the request.
    const Interval before = free_.take_ending_at(space.begin);
    const Interval grown{space.begin, round_up(size - before.bytes, kHugePage)};
    untouched_.insert({grown.end(), space.bytes - grown.bytes});
    const std::size_t moved = free_.bytes() < kScattered ? 0 : move_free_pages(grown);
    touch({grown.begin + moved, grown.bytes - moved});
    system_bytes_ += grown.bytes - moved;
    std::byte* const piece = before.bytes > 0 ? before.begin : grown.begin;
    free_.insert({piece + size, static_cast<std::size_t>(grown.end() - piece) - size});
    return piece;
  }

  Interval take_untouched(std::size_t bytes) {
    std::byte* begin = untouched_.take(bytes);
    if (begin == nullptr) {
      untouched_.insert(regions_.emplace_back(std::make_unique<Region>(round_up(bytes, kRegion)))->space());
      begin = untouched_.take(bytes);
    }
    return {begin, bytes};
  }

  // Moves the huge pages of free pieces, the largest first, to the begin of `to`: the arena does not grow because its
  // free pieces are too small each. Returns the bytes that have pages then.
  std::size_t move_free_pages(const Interval& to) {
    std::size_t moved = 0;
    std::vector<Interval> rest;
    while (moved < to.bytes && !free_.empty()) {
      const Interval piece = free_.take_largest();
      rest.push_back(piece);
      if (piece.bytes < kHugePage) break;
      const Interval pages = last_huge_pages(piece, to.bytes - moved);
      if (pages.bytes == 0) continue;
      if (!move_pages(pages, to.begin + moved)) break;
      moved += pages.bytes;
      untouched_.insert(pages);
      rest.back() = {piece.begin, static_cast<std::size_t>(pages.begin - piece.begin)};
      rest.push_back({pages.end(), static_cast<std::size_t>(piece.end() - pages.end())});
    }
    for (const Interval& piece : rest) free_.insert(piece);
    return moved;
  }

  void give_back(std::byte* piece, std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (size <= kLargestSmall) {
      free_small_[size].push_back(piece);
    } else {
      free_.insert({piece, size});
    }
  }

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Region>> regions_;
  Intervals free_;       // touched
  Intervals untouched_;  // whole huge pages
  std::map<std::size_t, std::vector<std::byte*>> free_small_;
  Interval chunk_;  // what is left of it
  std::size_t system_bytes_ = 0;
};

}  // namespace

std::shared_ptr<Arena> Arena::create() { return std::make_shared<PoolArena>(); }

}  // namespace loom::device
