#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "engine/core/error.h"
#include "engine/device/arena.h"

namespace loom::device {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{64} << 20;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// Size classes in steps of an eighth of a power of two: at most 12.5 % is lost.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 8 * kAlign) return std::max(round_up(bytes, kAlign), kAlign);
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return round_up(round_up(bytes, step), bytes >= kPage ? kPage : kAlign);
}

std::byte* map_touched(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) raise<DeviceError>("the system has no {} bytes of memory for the device arena", bytes);
  auto* aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::size_t>(memory), kHugePage));
  madvise(aligned, bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  if (madvise(aligned, bytes, MADV_POPULATE_WRITE) == 0) return aligned;
#endif
  for (std::size_t offset = 0; offset < bytes; offset += kPage) aligned[offset] = std::byte{0};
  return aligned;
}

class PoolArena final : public Arena {
 public:
  std::shared_ptr<std::byte> take(std::size_t bytes) override {
    const std::size_t size = size_class(bytes);
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
    std::vector<std::byte*>& free_pieces = free_[size];
    if (!free_pieces.empty()) {
      std::byte* piece = free_pieces.back();
      free_pieces.pop_back();
      return piece;
    }
    if (size > kChunk / 4) return map_chunk(round_up(size, kHugePage));
    if (chunk_left_ < size + kPage) {
      chunk_next_ = map_chunk(kChunk);
      chunk_left_ = kChunk;
    }
    const std::size_t skip = size >= kPage ? round_up(reinterpret_cast<std::size_t>(chunk_next_), kPage) -
                                                 reinterpret_cast<std::size_t>(chunk_next_)
                                           : 0;
    std::byte* piece = chunk_next_ + skip;
    chunk_next_ += skip + size;
    chunk_left_ -= skip + size;
    return piece;
  }

  std::byte* map_chunk(std::size_t bytes) {
    system_bytes_ += bytes;
    return map_touched(bytes);
  }

  void give_back(std::byte* piece, std::size_t size) {
    const std::lock_guard lock(mutex_);
    free_[size].push_back(piece);
  }

  mutable std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
  std::byte* chunk_next_ = nullptr;
  std::size_t chunk_left_ = 0;
  std::size_t system_bytes_ = 0;
};

}  // namespace

std::shared_ptr<Arena> Arena::create() { return std::make_shared<PoolArena>(); }

}  // namespace loom::device
