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
// Options   expandable_segments: each pool has one range of addresses, 1.125 times the device, and maps pages of 2 MiB
//           (small pieces) or 20 MiB where it grows; the end of the mapped part is reused first, and rests of 512 bytes
//           are split off. Giving back unmaps whole pages.
//           max_split_size_mb: larger pieces are not split, go to requests as large alone, and are given back, largest
//           first, when the device is full. roundup_power2_divisions: of requests. garbage_collection_threshold: what
//           was free longest is given back before a new segment, above that share of per_process_memory_fraction.
// Classes   with PoolRule::kByLife the pools of a stream are cut by life class too, and a static request above 1 MiB
//           gets a segment of exactly its rounded size: MindSpeed's --memory-fragmentation.
// Limits    addresses are given in the order of the segments.
// Threads   the rank's host thread.
// Source    PyTorch 2.11, c10/cuda/CUDACachingAllocator.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/allocator_settings.h"
#include "engine/device/allocator_trace.h"
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

  explicit CachingAllocator(std::int64_t capacity_bytes, const AllocatorSettings& settings = {});
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // `bytes` > 0. Null when the device has no room, even without the cached segments; these are given back then.
  Piece* allocate(std::int64_t bytes, StreamId pool, LifeClass life = LifeClass::kTemporary);
  void free(Piece* piece);
  // Gives every wholly free segment back to the device (torch.cuda.empty_cache).
  void empty_cache();

  // Of the device, or of the part that the process may have.
  std::int64_t capacity_bytes() const { return capacity_bytes_; }
  const AllocatorSettings& settings() const { return settings_; }
  const AllocatorStats& stats() const { return stats_; }
  // One entry for each stream, or class, that holds segments, in the order of the enumerators.
  std::vector<PoolStats> pools() const;
  // By address. The origins of the blocks are not known here.
  std::vector<AllocatorSegment> segments() const;
  // Called at every change, in order: what is given back comes before what takes its room. Empty: no call.
  void observe(std::function<void(const AllocatorChange&)> observer) { observer_ = std::move(observer); }
  // Peaks restart from the present values.
  void reset_peaks();

 private:
  struct BySizeThenAddress {
    bool operator()(const Piece* a, const Piece* b) const;
  };
  struct ByAddress {
    bool operator()(const Piece* a, const Piece* b) const;
  };
  using FreePieces = std::set<Piece*, BySizeThenAddress>;
  struct Pool {
    FreePieces pieces;                     // free
    std::set<Piece*, ByAddress> unmapped;  // of expandable segments
  };

  Pool& pool(const Piece& piece);
  std::int64_t rounded(std::int64_t bytes) const;
  bool is_split(const Piece& piece, std::int64_t bytes) const;
  Piece* take_free(const Piece& wanted);
  Piece* take_new(const Piece& wanted);
  Piece* take_segment(const Piece& wanted);
  std::int64_t segment_bytes(const Piece& wanted) const;
  void split(Piece* piece, std::int64_t bytes);
  void add_free(Piece* piece);
  void empty(Pool& free_pieces);
  void give_back(Piece* piece);
  bool give_back_oversized(const Piece& wanted);
  void collect_garbage();
  Piece* make(const Piece& like);
  void drop(Piece* piece);
  template <class Set>
  void insert(Set& set, Piece* piece);
  template <class Set>
  void erase(Set& set, Piece* piece);
  void merge_with_next(Piece* piece);
  void grow(std::int64_t bytes);
  void tell(AllocatorAction action, const Piece& piece) const;
  void tell(AllocatorAction action, const Piece& piece, std::int64_t bytes) const;

  // Expandable segments.
  Piece* take_mapped(const Piece& wanted);
  Piece* find_room(const Piece& wanted);
  bool map(Piece* piece, std::int64_t bytes);
  void unmap(Piece* piece);
  Piece* cut(Piece* piece, std::int64_t bytes);
  Piece* merge_with_free_neighbours(Piece* piece);

  const AllocatorSettings settings_;
  const std::int64_t device_bytes_;
  const std::int64_t capacity_bytes_;
  std::array<std::array<std::array<Pool, 2>, kLifeClasses>, kStreams> pools_;  // by stream, class and size
  // Pieces and places in pools come and go with every request, so they are used again.
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::vector<Piece*> unused_;
  std::vector<FreePieces::node_type> unused_nodes_;
  std::int64_t next_address_ = 0;
  std::int64_t searches_ = 0;  // of free large pieces: ages are counted in them
  AllocatorStats stats_;
  std::function<void(const AllocatorChange&)> observer_;
};

}  // namespace loom::device
