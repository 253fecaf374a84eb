// PairTable: rank and result of the merge of two tokens, by their ids. Private to engine/text.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace loom::data {

class PairTable {
 public:
  static constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();

  struct Merge {
    std::uint32_t rank = kNoRank;
    std::int32_t id = -1;
  };

  PairTable() : PairTable(0) {}
  explicit PairTable(std::size_t pairs)
      : slots_(std::bit_ceil(2 * pairs + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

  // At most the announced number of pairs; an existing pair is replaced.
  void put(std::int32_t left, std::int32_t right, Merge merge) {
    slots_[slot_of(key_of(left, right))] = {key_of(left, right), merge};
  }

  // kNoRank if the two have no merge.
  Merge find(std::int32_t left, std::int32_t right) const { return slots_[slot_of(key_of(left, right))].merge; }

 private:
  static constexpr std::uint64_t kEmpty = std::numeric_limits<std::uint64_t>::max();
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    std::size_t slot = key * 0x9e3779b97f4a7c15ULL >> shift_;
    while (slots_[slot].key != key && slots_[slot].key != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace loom::data
