#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/device/arena.h"

namespace loom::device {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kChunk = std::size_t{64} << 20;

// Size classes in steps of an eighth of a power of two, whole pages from a page up.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 8 * kAlign) return std::max(round_up(bytes, kAlign), kAlign);
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return round_up(round_up(bytes, step), bytes >= kPage ? kPage : kAlign);
}

std::byte* aligned_up(void* memory, std::size_t unit) {
  return reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::size_t>(memory), unit));
}

// Address space of `bytes` touched bytes from a huge page's boundary on; unmapped at destruction.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : mapped_bytes_(bytes + kHugePage) {
    memory_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED)
      raise<DeviceError>(
          "the machine has no {} bytes left for the memory of a device; use fewer ranks a machine, a "
          "smaller batch or a smaller model",
          bytes);
    madvise(begin(), bytes, MADV_HUGEPAGE);
    touch(bytes);
  }
  ~Mapping() { munmap(memory_, mapped_bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* begin() const { return aligned_up(memory_, kHugePage); }

 private:
  void touch(std::size_t bytes) const {
#ifdef MADV_POPULATE_WRITE
    if (madvise(begin(), bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
    for (std::size_t offset = 0; offset < bytes; offset += kPage) begin()[offset] = std::byte{0};
  }

  const std::size_t mapped_bytes_;
  void* memory_;
};

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
    std::byte* piece = aligned_up(chunk_next_, size >= kPage ? kPage : kAlign);
    chunk_left_ -= static_cast<std::size_t>(piece - chunk_next_) + size;
    chunk_next_ = piece + size;
    return piece;
  }

  std::byte* map_chunk(std::size_t bytes) {
    std::byte* begin = mappings_.emplace_back(std::make_unique<Mapping>(bytes))->begin();
    system_bytes_ += bytes;
    return begin;
  }

  void give_back(std::byte* piece, std::size_t size) {
    const std::lock_guard lock(mutex_);
    free_[size].push_back(piece);
  }

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
  std::byte* chunk_next_ = nullptr;
  std::size_t chunk_left_ = 0;
  std::size_t system_bytes_ = 0;
};

}  // namespace

std::shared_ptr<Arena> Arena::create() { return std::make_shared<PoolArena>(); }

}  // namespace loom::device
