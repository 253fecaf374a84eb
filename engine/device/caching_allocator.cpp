#include "engine/device/caching_allocator.h"

#include <algorithm>
#include <utility>

#include "engine/core/rounding.h"

namespace loom::device {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kRounding = 512;
constexpr std::int64_t kLargestSmall = kMiB;
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kMediumSegment = 20 * kMiB;
constexpr std::int64_t kSmallestOfOwnSegment = 10 * kMiB;
constexpr std::int64_t kSegmentRounding = 2 * kMiB;

bool is_split(std::int64_t piece_bytes, std::int64_t bytes, bool small) {
  const std::int64_t rest = piece_bytes - bytes;
  return small ? rest >= kRounding : rest > kLargestSmall;
}

}  // namespace

// A part of a segment; its neighbours are linked in the order of addresses.
class CachingAllocator::Piece {
 public:
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  StreamId stream = StreamId::kCompute;
  LifeClass life{};  // the first one where pools are not cut by it
  bool small = false;
  bool allocated = false;
  Piece* previous = nullptr;
  Piece* next = nullptr;

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
};

bool CachingAllocator::BySizeThenAddress::operator()(const Piece* a, const Piece* b) const {
  return std::pair(a->bytes, a->address) < std::pair(b->bytes, b->address);
}

double PoolStats::fragmentation() const {
  if (free_bytes() == 0) return 0;
  return 1 - static_cast<double>(largest_free_bytes) / static_cast<double>(free_bytes());
}

CachingAllocator::CachingAllocator(std::int64_t capacity_bytes, PoolRule rule)
    : capacity_bytes_(capacity_bytes), rule_(rule) {}
CachingAllocator::~CachingAllocator() = default;

CachingAllocator::Pool& CachingAllocator::pool(const Piece& piece) {
  return pools_[static_cast<std::size_t>(piece.stream)][static_cast<std::size_t>(piece.life)][piece.small ? 1 : 0];
}

CachingAllocator::Piece* CachingAllocator::own(std::unique_ptr<Piece> piece) {
  Piece* raw = piece.get();
  pieces_.emplace(raw, std::move(piece));
  return raw;
}

CachingAllocator::Piece* CachingAllocator::allocate(std::int64_t bytes, StreamId stream, LifeClass life) {
  Piece wanted;
  wanted.bytes = round_up(bytes, kRounding);
  wanted.stream = stream;
  wanted.life = rule_ == PoolRule::kByLife ? life : LifeClass{};
  wanted.small = wanted.bytes <= kLargestSmall;
  Piece* piece = take_free(wanted);
  if (piece == nullptr) piece = take_segment(wanted);
  if (piece == nullptr) return nullptr;
  if (is_split(piece->bytes, wanted.bytes, wanted.small)) split(piece, wanted.bytes);
  piece->allocated = true;
  stats_.allocated_bytes += piece->bytes;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  return piece;
}

CachingAllocator::Piece* CachingAllocator::take_free(const Piece& wanted) {
  Pool& free_pieces = pool(wanted);
  const auto found = free_pieces.lower_bound(const_cast<Piece*>(&wanted));
  if (found == free_pieces.end()) return nullptr;
  Piece* piece = *found;
  free_pieces.erase(found);
  return piece;
}

std::int64_t CachingAllocator::segment_bytes(const Piece& wanted) const {
  if (wanted.small) return kSmallSegment;
  if (rule_ == PoolRule::kByLife && wanted.life == LifeClass::kStatic) return wanted.bytes;
  if (wanted.bytes < kSmallestOfOwnSegment) return kMediumSegment;
  return round_up(wanted.bytes, kSegmentRounding);
}

CachingAllocator::Piece* CachingAllocator::take_segment(const Piece& wanted) {
  const std::int64_t size = segment_bytes(wanted);
  if (stats_.reserved_bytes + size > capacity_bytes_) {
    const std::int64_t before = stats_.segments;
    empty_cache();
    if (stats_.segments < before) ++stats_.cache_flushes;
  }
  if (stats_.reserved_bytes + size > capacity_bytes_) return nullptr;
  auto piece = std::make_unique<Piece>(wanted);
  piece->address = next_address_;
  piece->bytes = size;
  next_address_ += size;
  stats_.reserved_bytes += size;
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  ++stats_.segments;
  return own(std::move(piece));
}

// Cuts `piece`, which is in no pool, to `bytes`; the rest behind it becomes free.
void CachingAllocator::split(Piece* piece, std::int64_t bytes) {
  auto rest = std::make_unique<Piece>(*piece);
  rest->address += bytes;
  rest->bytes -= bytes;
  rest->previous = piece;
  if (rest->next != nullptr) rest->next->previous = rest.get();
  piece->bytes = bytes;
  piece->next = rest.get();
  pool(*piece).insert(own(std::move(rest)));
}

void CachingAllocator::free(Piece* piece) {
  stats_.allocated_bytes -= piece->bytes;
  piece->allocated = false;
  if (piece->next != nullptr && !piece->next->allocated) {
    pool(*piece).erase(piece->next);
    merge_with_next(piece);
  }
  if (piece->previous != nullptr && !piece->previous->allocated) {
    piece = piece->previous;
    pool(*piece).erase(piece);
    merge_with_next(piece);
  }
  pool(*piece).insert(piece);
}

void CachingAllocator::merge_with_next(Piece* piece) {
  Piece* next = piece->next;
  piece->bytes += next->bytes;
  piece->next = next->next;
  if (piece->next != nullptr) piece->next->previous = piece;
  pieces_.erase(next);
}

void CachingAllocator::empty_cache() {
  for (auto& of_stream : pools_) {
    for (auto& of_class : of_stream) {
      for (Pool& free_pieces : of_class) empty(free_pieces);
    }
  }
}

void CachingAllocator::empty(Pool& free_pieces) {
  for (auto at = free_pieces.begin(); at != free_pieces.end();) {
    Piece* piece = *at;
    if (!piece->is_whole_segment()) {
      ++at;
      continue;
    }
    at = free_pieces.erase(at);
    stats_.reserved_bytes -= piece->bytes;
    --stats_.segments;
    pieces_.erase(piece);
  }
}

std::vector<PoolStats> CachingAllocator::pools() const {
  const bool by_life = rule_ == PoolRule::kByLife;
  std::vector<PoolStats> all(by_life ? kLifeClasses : kStreams);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].pool = by_life ? name(static_cast<LifeClass>(i)) : name(static_cast<StreamId>(i));
  }
  for (const auto& [piece, owner] : pieces_) {
    PoolStats& pool = all[by_life ? static_cast<std::size_t>(piece->life) : static_cast<std::size_t>(piece->stream)];
    pool.reserved_bytes += piece->bytes;
    if (piece->allocated) {
      pool.allocated_bytes += piece->bytes;
    } else {
      pool.largest_free_bytes = std::max(pool.largest_free_bytes, piece->bytes);
    }
  }
  std::erase_if(all, [](const PoolStats& pool) { return pool.reserved_bytes == 0; });
  return all;
}

void CachingAllocator::reset_peaks() {
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
}

}  // namespace loom::device
