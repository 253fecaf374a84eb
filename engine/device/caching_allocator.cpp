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

std::int64_t segment_bytes(std::int64_t bytes) {
  if (bytes <= kLargestSmall) return kSmallSegment;
  if (bytes < kSmallestOfOwnSegment) return kMediumSegment;
  return round_up(bytes, kSegmentRounding);
}

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
  bool small = false;
  bool allocated = false;
  Piece* previous = nullptr;
  Piece* next = nullptr;

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
};

bool CachingAllocator::BySizeThenAddress::operator()(const Piece* a, const Piece* b) const {
  return std::pair(a->bytes, a->address) < std::pair(b->bytes, b->address);
}

CachingAllocator::CachingAllocator(std::int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
CachingAllocator::~CachingAllocator() = default;

CachingAllocator::Pool& CachingAllocator::pool(const Piece& piece) {
  return pools_[static_cast<std::size_t>(piece.stream)][piece.small ? 1 : 0];
}

CachingAllocator::Piece* CachingAllocator::own(std::unique_ptr<Piece> piece) {
  Piece* raw = piece.get();
  pieces_.emplace(raw, std::move(piece));
  return raw;
}

CachingAllocator::Piece* CachingAllocator::allocate(std::int64_t bytes, StreamId stream) {
  bytes = round_up(bytes, kRounding);
  const bool small = bytes <= kLargestSmall;
  Piece* piece = take_free(bytes, stream, small);
  if (piece == nullptr) piece = take_segment(bytes, stream, small);
  if (piece == nullptr) return nullptr;
  if (is_split(piece->bytes, bytes, small)) split(piece, bytes);
  piece->allocated = true;
  stats_.allocated_bytes += piece->bytes;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  return piece;
}

CachingAllocator::Piece* CachingAllocator::take_free(std::int64_t bytes, StreamId stream, bool small) {
  Piece wanted;
  wanted.bytes = bytes;
  wanted.stream = stream;
  wanted.small = small;
  Pool& free_pieces = pool(wanted);
  const auto found = free_pieces.lower_bound(&wanted);
  if (found == free_pieces.end()) return nullptr;
  Piece* piece = *found;
  free_pieces.erase(found);
  return piece;
}

CachingAllocator::Piece* CachingAllocator::take_segment(std::int64_t bytes, StreamId stream, bool small) {
  const std::int64_t size = segment_bytes(bytes);
  if (stats_.reserved_bytes + size > capacity_bytes_) {
    const std::int64_t before = stats_.segments;
    empty_cache();
    if (stats_.segments < before) ++stats_.cache_flushes;
  }
  if (stats_.reserved_bytes + size > capacity_bytes_) return nullptr;
  auto piece = std::make_unique<Piece>();
  piece->address = next_address_;
  piece->bytes = size;
  piece->stream = stream;
  piece->small = small;
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
    for (Pool& free_pieces : of_stream) {
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
  }
}

void CachingAllocator::reset_peaks() {
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
}

}  // namespace loom::device
