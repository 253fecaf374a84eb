#include "engine/text/tokenizer/piece_cache.h"

#include <algorithm>

namespace loom::data {

PieceCache::Slot& PieceCache::place_for(std::uint64_t hash) {
  for (std::size_t way = 0; way < kWays; ++way) {
    Slot& slot = slots_[(hash + way) & (kSlots - 1)];
    if (slot.bytes == 0) return slot;
  }
  return slots_[(hash + (hash >> 60U) % kWays) & (kSlots - 1)];
}

void PieceCache::put(std::string_view piece, std::uint64_t hash, std::span<const std::int32_t> ids) {
  if (piece.empty() || piece.size() > kMostPieceBytes) return;
  const std::size_t words = (piece.size() + sizeof(std::int32_t) - 1) / sizeof(std::int32_t);
  if (slots_.empty() || arena_.size() + ids.size() + words > kMostWords) {
    slots_.assign(kSlots, {});
    arena_.clear();
  }
  const std::size_t at = arena_.size();
  arena_.resize(at + ids.size() + words);
  std::ranges::copy(ids, arena_.begin() + static_cast<std::ptrdiff_t>(at));
  std::memcpy(arena_.data() + at + ids.size(), piece.data(), piece.size());
  place_for(hash) = {hash, static_cast<std::uint32_t>(at), static_cast<std::uint16_t>(piece.size()),
                     static_cast<std::uint16_t>(ids.size())};
}

}  // namespace loom::data
