// CachingAllocator: what PyTorch's caching allocator would do with the same requests - segments, splits, caches.
//
// Rounding  a request counts as the next multiple of 512 bytes.
// Segments  what the device gives: 2 MiB for requests up to 1 MiB, 20 MiB for those below 10 MiB, else the request
//           rounded up to 2 MiB. reserved = the sum of all segments.
// Reuse     the smallest free piece that fits, of equal ones that at the lowest address, among the pieces of the same
//           stream's pool and of the same kind (up to 1 MiB, above). It is split unless 1 MiB or less (small pieces:
//           less than 512 bytes) would remain; what is not split off counts as allocated. A piece that is given back
//           merges with its free neighbours of the segment; segments are kept.
// Full      when a new segment does not fit, all wholly free segments are given back to the device first, as PyTorch
//           does.
// Classes   with PoolRule::kByLife the pools of a stream are cut by life class too, and a static request above 1 MiB
//           gets a segment of exactly its rounded size: MindSpeed's --memory-fragmentation.
// Limits    expandable segments, max_split_size and garbage collection thresholds are off, as by default. Addresses are
//           given in the order of the segments.
// Threads   the rank's host thread.
// Source    PyTorch 2.11, c10/cuda/CUDACachingAllocator.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/device/life_class.h"
#include "engine/device/stream_id.h"

namespace loom::device {

struct AllocatorStats {
  std::int64_t allocated_bytes = 0;
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
  std::int64_t peak_reserved_bytes = 0;
  std::int64_t segments = 0;
  // Times the cached segments were given back because a new one did not fit: num_alloc_retries of
  // torch.cuda.memory_stats(). A device waits for all its streams each time.
  std::int64_t cache_flushes = 0;
};

// The present content of the pools of one name.
struct PoolStats {
  std::string pool;  // a stream's name; by life: a class's
  std::int64_t reserved_bytes = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t largest_free_bytes = 0;

  std::int64_t free_bytes() const { return reserved_bytes - allocated_bytes; }
  // 1 - largest free piece / all free bytes: the share of the free bytes that one request cannot have. 0 without any.
  double fragmentation() const;
};

class CachingAllocator {
 public:
  class Piece;

  explicit CachingAllocator(std::int64_t capacity_bytes, PoolRule rule = PoolRule::kByStream);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // `bytes` > 0. Null when the device has no room, even without the cached segments; these are given back then.
  Piece* allocate(std::int64_t bytes, StreamId pool, LifeClass life = LifeClass::kTemporary);
  void free(Piece* piece);
  // Gives every wholly free segment back to the device (torch.cuda.empty_cache).
  void empty_cache();

  std::int64_t capacity_bytes() const { return capacity_bytes_; }
  const AllocatorStats& stats() const { return stats_; }
  // One entry for each stream, or class, that holds segments, in the order of the enumerators.
  std::vector<PoolStats> pools() const;
  // Peaks restart from the present values.
  void reset_peaks();

 private:
  struct BySizeThenAddress {
    bool operator()(const Piece* a, const Piece* b) const;
  };
  using Pool = std::set<Piece*, BySizeThenAddress>;

  Pool& pool(const Piece& piece);
  Piece* take_free(const Piece& wanted);
  Piece* take_segment(const Piece& wanted);
  std::int64_t segment_bytes(const Piece& wanted) const;
  void split(Piece* piece, std::int64_t bytes);
  void empty(Pool& free_pieces);
  Piece* own(std::unique_ptr<Piece> piece);
  void merge_with_next(Piece* piece);

  const std::int64_t capacity_bytes_;
  const PoolRule rule_;
  std::array<std::array<std::array<Pool, 2>, kLifeClasses>, kStreams> pools_;  // by stream, class and size
  std::unordered_map<Piece*, std::unique_ptr<Piece>> pieces_;
  std::int64_t next_address_ = 0;
  AllocatorStats stats_;
};

}  // namespace loom::device
