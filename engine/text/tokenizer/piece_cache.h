// PieceCache: the ids of earlier pieces. Private to engine/text.
//
// Bounds   131072 places and 16 MiB; pieces of more than 64 bytes are not kept. A place is one of four that a piece may
//          have; when they or the bytes are full, older pieces are evicted.
// Threads  one.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace loom::data {

class PieceCache {
 public:
  static constexpr std::size_t kMostPieceBytes = 64;

  // The ids, valid until the next put(); null if the piece is absent.
  const std::int32_t* find(std::string_view piece, std::uint64_t hash, std::size_t& count) const {
    if (slots_.empty()) return nullptr;
    for (std::size_t way = 0; way < kWays; ++way) {
      const Slot& slot = slots_[(hash + way) & (kSlots - 1)];
      if (slot.hash != hash || slot.bytes != piece.size() || slot.bytes == 0) continue;
      const std::int32_t* ids = arena_.data() + slot.at;
      if (std::memcmp(ids + slot.count, piece.data(), piece.size()) != 0) continue;
      count = slot.count;
      return ids;
    }
    return nullptr;
  }
  void put(std::string_view piece, std::uint64_t hash, std::span<const std::int32_t> ids);

  static std::uint64_t hash_of(std::string_view piece) {
    std::uint64_t hash = 0x9e3779b97f4a7c15ULL ^ piece.size();
    const char* at = piece.data();
    std::size_t left = piece.size();
    for (; left >= 8; at += 8, left -= 8) hash = mixed(hash ^ word(at, 8));
    if (left > 0) hash = mixed(hash ^ word(at, left));
    return hash;
  }

 private:
  static constexpr std::size_t kSlots = std::size_t{1} << 17U;
  static constexpr std::size_t kWays = 4;
  static constexpr std::size_t kMostWords = std::size_t{4} << 20U;

  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t at = 0;
    std::uint16_t bytes = 0;
    std::uint16_t count = 0;
  };

  static std::uint64_t word(const char* at, std::size_t bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, at, bytes);
    return value;
  }
  static std::uint64_t mixed(std::uint64_t value) {
    value *= 0xd6e8feb86659fd93ULL;
    return value ^ value >> 32U;
  }
  Slot& place_for(std::uint64_t hash);

  std::vector<Slot> slots_;
  std::vector<std::int32_t> arena_;  // ids, then the bytes of the piece
};

}  // namespace loom::data
