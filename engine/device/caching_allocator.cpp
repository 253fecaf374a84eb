#include "engine/device/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>
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
constexpr std::int64_t kLargestDevice = std::int64_t{1} << 44;  // for ranges of addresses

std::int64_t page_bytes(bool small) { return small ? kSmallSegment : kMediumSegment; }

// The next of the `divisions` equal steps between powers of two.
std::int64_t next_division(std::int64_t bytes, std::int64_t divisions) {
  const auto size = static_cast<std::uint64_t>(bytes);
  if (std::has_single_bit(size)) return bytes;
  const std::uint64_t floor = std::bit_floor(size), step = floor / static_cast<std::uint64_t>(divisions);
  return static_cast<std::int64_t>(step == 0 ? floor << 1 : (size + step - 1) / step * step);
}

}  // namespace

// A part of a segment; its neighbours are linked in the order of addresses.
class CachingAllocator::Piece {
 public:
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t requested_bytes = 0;  // of an allocated one
  StreamId stream = StreamId::kCompute;
  LifeClass life{};  // the first one where pools are not cut by it
  bool small = false;
  bool allocated = false;
  bool expandable = false;  // of an expandable segment
  bool mapped = true;
  bool used = true;             // else it is in unused_
  std::int64_t free_since = 0;  // in searches
  Piece* previous = nullptr;
  Piece* next = nullptr;

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
};

bool CachingAllocator::BySizeThenAddress::operator()(const Piece* a, const Piece* b) const {
  return std::pair(a->bytes, a->address) < std::pair(b->bytes, b->address);
}

bool CachingAllocator::ByAddress::operator()(const Piece* a, const Piece* b) const { return a->address < b->address; }

double PoolStats::fragmentation() const {
  if (free_bytes() == 0) return 0;
  return 1 - static_cast<double>(largest_free_bytes) / static_cast<double>(free_bytes());
}

CachingAllocator::CachingAllocator(std::int64_t capacity_bytes, const AllocatorSettings& settings)
    : settings_(settings),
      device_bytes_(capacity_bytes),
      capacity_bytes_(settings.memory_fraction > 0
                          ? static_cast<std::int64_t>(static_cast<double>(capacity_bytes) * settings.memory_fraction)
                          : capacity_bytes) {}
CachingAllocator::~CachingAllocator() = default;

CachingAllocator::Pool& CachingAllocator::pool(const Piece& piece) {
  return pools_[piece.stream.place()][static_cast<std::size_t>(piece.life)][piece.small ? 1 : 0];
}

CachingAllocator::Piece* CachingAllocator::make(const Piece& like) {
  if (unused_.empty()) return pieces_.emplace_back(std::make_unique<Piece>(like)).get();
  Piece* piece = unused_.back();
  unused_.pop_back();
  *piece = like;
  return piece;
}

void CachingAllocator::drop(Piece* piece) {
  piece->used = false;
  unused_.push_back(piece);
}

template <class Set>
void CachingAllocator::insert(Set& set, Piece* piece) {
  if (unused_nodes_.empty()) {
    set.insert(piece);
    return;
  }
  auto node = std::move(unused_nodes_.back());
  unused_nodes_.pop_back();
  node.value() = piece;
  set.insert(std::move(node));
}

template <class Set>
void CachingAllocator::erase(Set& set, Piece* piece) {
  if (auto node = set.extract(piece)) unused_nodes_.push_back(std::move(node));
}

std::int64_t CachingAllocator::rounded(std::int64_t bytes) const {
  const auto log = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(bytes)) - 1);
  constexpr std::size_t kFirst = 20;  // 1 MiB
  const std::size_t interval = log > kFirst ? std::min(log - kFirst, AllocatorSettings::kIntervals - 1) : 0;
  const std::int64_t divisions = settings_.power2_divisions[interval];
  if (divisions > 1 && bytes > kRounding * divisions) return next_division(bytes, divisions);
  return round_up(bytes, kRounding);
}

bool CachingAllocator::is_split(const Piece& piece, std::int64_t bytes) const {
  const std::int64_t rest = piece.bytes - bytes;
  if (piece.small || settings_.expandable_segments) return rest >= kRounding;
  return rest > kLargestSmall && (settings_.max_split_bytes == 0 || bytes < settings_.max_split_bytes);
}

CachingAllocator::Piece* CachingAllocator::allocate(std::int64_t bytes, StreamId stream, LifeClass life) {
  Piece wanted;
  wanted.bytes = rounded(bytes);
  wanted.stream = stream;
  wanted.life = settings_.pools == PoolRule::kByLife ? life : LifeClass{};
  wanted.small = wanted.bytes <= kLargestSmall;
  Piece* piece = take_free(wanted);
  if (piece == nullptr) piece = take_new(wanted);
  if (piece == nullptr) return nullptr;
  if (is_split(*piece, wanted.bytes)) split(piece, wanted.bytes);
  piece->allocated = true;
  piece->requested_bytes = bytes;
  stats_.allocated_bytes += piece->bytes;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  tell(AllocatorAction::kAlloc, *piece);
  return piece;
}

CachingAllocator::Piece* CachingAllocator::take_free(const Piece& wanted) {
  if (!wanted.small) ++searches_;
  auto& pieces = pool(wanted).pieces;
  auto found = pieces.lower_bound(const_cast<Piece*>(&wanted));
  if (found == pieces.end()) return nullptr;
  if (settings_.expandable_segments) {  // a piece counts with what can be mapped behind it
    const auto room = [](const Piece* piece) {
      return piece->bytes + (piece->next != nullptr && !piece->next->mapped ? piece->next->bytes : 0);
    };
    for (auto next = std::next(found); next != pieces.end() && room(*next) < room(*found); ++next) found = next;
  }
  Piece* piece = *found;
  if (settings_.max_split_bytes > 0) {
    const bool is_oversized = wanted.bytes >= settings_.max_split_bytes;
    if (!is_oversized && piece->bytes >= settings_.max_split_bytes) return nullptr;
    if (is_oversized && piece->bytes >= wanted.bytes + settings_.max_non_split_rounding_bytes) return nullptr;
  }
  unused_nodes_.push_back(pieces.extract(found));
  return piece;
}

CachingAllocator::Piece* CachingAllocator::take_new(const Piece& wanted) {
  if (settings_.collects_garbage()) collect_garbage();
  if (Piece* piece = take_segment(wanted)) return piece;
  if (give_back_oversized(wanted)) {
    if (Piece* piece = take_segment(wanted)) return piece;
  }
  const std::int64_t before = stats_.reserved_bytes;
  empty_cache();
  if (stats_.reserved_bytes < before) ++stats_.cache_flushes;
  return take_segment(wanted);
}

std::int64_t CachingAllocator::segment_bytes(const Piece& wanted) const {
  if (wanted.small) return kSmallSegment;
  if (settings_.pools == PoolRule::kByLife && wanted.life == LifeClass::kStatic) return wanted.bytes;
  if (wanted.bytes < kSmallestOfOwnSegment) return kMediumSegment;
  return round_up(wanted.bytes, kSegmentRounding);
}

CachingAllocator::Piece* CachingAllocator::take_segment(const Piece& wanted) {
  if (settings_.expandable_segments) return take_mapped(wanted);
  const std::int64_t size = segment_bytes(wanted);
  if (stats_.reserved_bytes + size > capacity_bytes_) return nullptr;
  Piece* piece = make(wanted);
  piece->address = next_address_;
  piece->bytes = size;
  next_address_ += size;
  grow(size);
  ++stats_.segments;
  tell(AllocatorAction::kSegmentAlloc, *piece);
  return piece;
}

void CachingAllocator::grow(std::int64_t bytes) {
  stats_.reserved_bytes += bytes;
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
}

void CachingAllocator::tell(AllocatorAction action, const Piece& piece) const { tell(action, piece, piece.bytes); }

// Of the first `bytes` of a piece.
void CachingAllocator::tell(AllocatorAction action, const Piece& piece, std::int64_t bytes) const {
  if (observer_) observer_({action, piece.stream, piece.address, bytes, piece.requested_bytes});
}

// Cuts `piece` to `bytes`; the rest behind it is returned, in no pool.
CachingAllocator::Piece* CachingAllocator::cut(Piece* piece, std::int64_t bytes) {
  Piece* rest = make(*piece);
  rest->address += bytes;
  rest->bytes -= bytes;
  rest->previous = piece;
  if (rest->next != nullptr) rest->next->previous = rest;
  piece->bytes = bytes;
  piece->next = rest;
  return rest;
}

// Cuts `piece`, which is in no pool, to `bytes`; the rest behind it becomes free.
void CachingAllocator::split(Piece* piece, std::int64_t bytes) { add_free(cut(piece, bytes)); }

void CachingAllocator::add_free(Piece* piece) {
  piece->free_since = searches_;
  insert(pool(*piece).pieces, piece);
}

void CachingAllocator::free(Piece* piece) {
  stats_.allocated_bytes -= piece->bytes;
  tell(AllocatorAction::kFree, *piece);
  piece->allocated = false;
  piece->requested_bytes = 0;
  add_free(merge_with_free_neighbours(piece));
}

// `piece` is in no pool. Mapped pieces merge with mapped ones, others with others.
CachingAllocator::Piece* CachingAllocator::merge_with_free_neighbours(Piece* piece) {
  const auto merges = [piece](const Piece* other) {
    return other != nullptr && !other->allocated && other->mapped == piece->mapped;
  };
  const auto leave_pool = [this](Piece* other) {
    if (other->mapped) {
      erase(pool(*other).pieces, other);
    } else {
      erase(pool(*other).unmapped, other);
    }
  };
  if (merges(piece->next)) {
    leave_pool(piece->next);
    merge_with_next(piece);
  }
  if (merges(piece->previous)) {
    piece = piece->previous;
    leave_pool(piece);
    merge_with_next(piece);
  }
  return piece;
}

void CachingAllocator::merge_with_next(Piece* piece) {
  Piece* next = piece->next;
  piece->bytes += next->bytes;
  piece->next = next->next;
  if (piece->next != nullptr) piece->next->previous = piece;
  drop(next);
}

void CachingAllocator::empty_cache() {
  for (auto& of_stream : pools_) {
    for (auto& of_class : of_stream) {
      for (Pool& free_pieces : of_class) empty(free_pieces);
    }
  }
}

void CachingAllocator::empty(Pool& free_pieces) {
  const std::vector<Piece*> all(free_pieces.pieces.begin(), free_pieces.pieces.end());
  for (Piece* piece : all) {
    if (piece->expandable) {
      unmap(piece);
    } else if (piece->is_whole_segment()) {
      give_back(piece);
    }
  }
}

// A free segment.
void CachingAllocator::give_back(Piece* piece) {
  erase(pool(*piece).pieces, piece);
  stats_.reserved_bytes -= piece->bytes;
  --stats_.segments;
  tell(AllocatorAction::kSegmentFree, *piece);
  drop(piece);
}

// Pieces that are never split: one that is large enough, or the largest ones until they are.
bool CachingAllocator::give_back_oversized(const Piece& wanted) {
  if (settings_.max_split_bytes == 0 || settings_.expandable_segments) return false;
  auto& pieces = pool(wanted).pieces;
  Piece key = wanted;
  key.bytes = std::max(wanted.bytes, settings_.max_split_bytes);
  if (const auto found = pieces.lower_bound(&key); found != pieces.end()) {
    give_back(*found);
    return true;
  }
  std::int64_t given = 0;
  while (given < key.bytes && !pieces.empty() && (*pieces.rbegin())->bytes >= settings_.max_split_bytes) {
    given += (*pieces.rbegin())->bytes;
    give_back(*pieces.rbegin());
  }
  return given >= key.bytes;
}

// Whole segments of large pieces, those of more than the mean age first, until enough is given back.
void CachingAllocator::collect_garbage() {
  const double allowed = settings_.garbage_collection_threshold * static_cast<double>(capacity_bytes_);
  const std::int64_t target = stats_.reserved_bytes - static_cast<std::int64_t>(allowed);
  if (target <= 0) return;
  std::vector<Piece*> segments;
  for (auto& of_stream : pools_) {
    for (auto& of_class : of_stream) {
      for (Piece* piece : of_class[0].pieces) {
        if (piece->is_whole_segment() && !piece->expandable) segments.push_back(piece);
      }
    }
  }
  std::int64_t given = 0;
  for (bool gives = true; given < target && gives && !segments.empty();) {
    double ages = 0;
    for (const Piece* piece : segments) ages += static_cast<double>(searches_ - piece->free_since);
    const double mean = ages / static_cast<double>(segments.size());
    const auto old = std::partition(segments.begin(), segments.end(), [&](const Piece* piece) {
      return static_cast<double>(searches_ - piece->free_since) < mean;
    });
    gives = old != segments.end();
    for (auto at = old; at != segments.end(); ++at) {
      given += (*at)->bytes;
      give_back(*at);
    }
    segments.erase(old, segments.end());
  }
}

// --- Expandable segments

// A free piece before unmapped addresses grows into them.
CachingAllocator::Piece* CachingAllocator::take_mapped(const Piece& wanted) {
  Piece* piece = find_room(wanted);
  if (!piece->mapped && !map(piece, std::min(piece->bytes, wanted.bytes))) return nullptr;
  while (piece->bytes < wanted.bytes) {
    Piece* next = piece->next;
    const std::int64_t missing = wanted.bytes - piece->bytes;
    if (!map(next, std::min(missing, next->bytes))) return nullptr;
    piece = next;
  }
  erase(pool(*piece).pieces, piece);
  return piece;
}

// The first addresses, free or unmapped, where the request has room; else a new range of them.
CachingAllocator::Piece* CachingAllocator::find_room(const Piece& wanted) {
  const auto is_free = [](const Piece* piece) { return piece != nullptr && !piece->allocated; };
  for (Piece* piece : pool(wanted).unmapped) {
    Piece* first = is_free(piece->previous) ? piece->previous : piece;
    std::int64_t room = 0;
    for (Piece* at = first; room < wanted.bytes && is_free(at); at = at->next) room += at->bytes;
    if (room >= wanted.bytes) return first;
  }
  Piece* range = make(wanted);
  next_address_ = round_up(next_address_, kMediumSegment);
  range->address = next_address_;
  const std::int64_t most = std::min(device_bytes_, kLargestDevice) / 8 * 9;
  range->bytes = round_up(std::max(most, wanted.bytes), page_bytes(wanted.small));
  range->expandable = true;
  range->mapped = false;
  next_address_ += range->bytes;
  insert(pool(*range).unmapped, range);
  ++stats_.segments;
  return range;
}

// Maps the first `bytes` of an unmapped piece, in pages; `piece` is then free, with free neighbours merged into it.
bool CachingAllocator::map(Piece* piece, std::int64_t bytes) {
  const std::int64_t size = round_up(bytes, page_bytes(piece->small));
  if (stats_.reserved_bytes + size > capacity_bytes_) return false;
  erase(pool(*piece).unmapped, piece);
  if (size < piece->bytes) {
    Piece* rest = cut(piece, size);
    insert(pool(*rest).unmapped, rest);
  }
  grow(size);
  tell(AllocatorAction::kSegmentMap, *piece, size);
  piece->mapped = true;
  // As the caller holds `piece`, it takes in the one before it.
  if (Piece* before = piece->previous; before != nullptr && !before->allocated && before->mapped) {
    erase(pool(*before).pieces, before);
    piece->address = before->address;
    piece->bytes += before->bytes;
    piece->previous = before->previous;
    if (piece->previous != nullptr) piece->previous->next = piece;
    drop(before);
  }
  if (Piece* next = piece->next; next != nullptr && !next->allocated && next->mapped) {
    erase(pool(*next).pieces, next);
    merge_with_next(piece);
  }
  add_free(piece);
  return true;
}

// Gives the whole pages of a free piece back.
void CachingAllocator::unmap(Piece* piece) {
  const std::int64_t page = page_bytes(piece->small);
  const std::int64_t begin = round_up(piece->address, page), end = (piece->address + piece->bytes) / page * page;
  if (begin >= end) return;
  erase(pool(*piece).pieces, piece);
  if (begin > piece->address) {
    Piece* pages = cut(piece, begin - piece->address);
    add_free(piece);
    piece = pages;
  }
  if (end < piece->address + piece->bytes) add_free(cut(piece, end - piece->address));
  stats_.reserved_bytes -= piece->bytes;
  tell(AllocatorAction::kSegmentUnmap, *piece);
  piece->mapped = false;
  piece = merge_with_free_neighbours(piece);
  if (piece->is_whole_segment()) {
    --stats_.segments;
    drop(piece);
    return;
  }
  insert(pool(*piece).unmapped, piece);
}

std::vector<PoolStats> CachingAllocator::pools() const {
  const bool by_life = settings_.pools == PoolRule::kByLife;
  std::vector<PoolStats> all(by_life ? kLifeClasses : kStreams);
  for (const auto& piece : pieces_) {
    if (!piece->used || !piece->mapped) continue;
    PoolStats& pool = all[by_life ? static_cast<std::size_t>(piece->life) : piece->stream.place()];
    pool.pool = by_life ? name(piece->life) : piece->stream.name();
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

std::vector<AllocatorSegment> CachingAllocator::segments() const {
  const auto is_mapped = [](const Piece* piece) { return piece != nullptr && piece->mapped; };
  std::vector<AllocatorSegment> all;
  for (const auto& first : pieces_) {
    if (!first->used || !first->mapped || is_mapped(first->previous)) continue;
    AllocatorSegment segment{first->address, 0, first->stream, first->small, first->expandable};
    for (const Piece* piece = first.get(); is_mapped(piece); piece = piece->next) {
      segment.bytes += piece->bytes;
      segment.blocks.push_back({piece->address, piece->bytes, piece->requested_bytes, piece->allocated});
    }
    all.push_back(std::move(segment));
  }
  std::ranges::sort(all, {}, &AllocatorSegment::address);
  return all;
}

void CachingAllocator::reset_peaks() {
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
}

}  // namespace loom::device
