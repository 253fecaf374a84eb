// Intervals: a set of pieces of address space that do not overlap; neighbours are one piece. Private to engine/device.
//
// Order    by address, and by size for what fits best: of exactly that size, else the smallest piece that leaves a rest
//          of use (`least_rest`), else the smallest that is large enough; of equal ones the one at the lowest address.
// Threads  one at a time.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace loom::device {

struct Interval {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;

  std::byte* end() const { return begin + bytes; }
};

class Intervals {
 public:
  bool empty() const { return by_begin_.empty(); }
  // The sum over all pieces.
  std::size_t bytes() const { return bytes_; }

  // Precondition: it overlaps none of them. Nothing to do for 0 bytes.
  void insert(Interval added) {
    if (added.bytes == 0) return;
    const auto after = by_begin_.lower_bound(added.begin);
    if (after != by_begin_.end() && after->first == added.end()) added.bytes += remove(after).bytes;
    const auto behind = by_begin_.lower_bound(added.begin);
    if (behind != by_begin_.begin()) {
      const auto before = std::prev(behind);
      if (before->first + before->second == added.begin) {
        const Interval joined = remove(before);
        added = {joined.begin, joined.bytes + added.bytes};
      }
    }
    by_begin_.emplace(added.begin, added.bytes);
    by_size_.emplace(added.bytes, added.begin);
    bytes_ += added.bytes;
  }

  // The first `bytes` of the piece that fits best; null when none is large enough.
  std::byte* take(std::size_t bytes, std::size_t least_rest = 0) {
    auto found = by_size_.lower_bound({bytes, nullptr});
    if (found == by_size_.end()) return nullptr;
    if (found->first != bytes) {
      if (const auto roomy = by_size_.lower_bound({bytes + least_rest, nullptr}); roomy != by_size_.end())
        found = roomy;
    }
    const Interval whole = remove(by_begin_.find(found->second));
    insert({whole.begin + bytes, whole.bytes - bytes});
    return whole.begin;
  }

  // Removes the piece that ends at `end` and returns it; an empty piece if there is none.
  Interval take_ending_at(const std::byte* end) {
    auto after = by_begin_.lower_bound(const_cast<std::byte*>(end));
    if (after == by_begin_.begin()) return {};
    const auto piece = std::prev(after);
    return piece->first + piece->second == end ? remove(piece) : Interval{};
  }

  // Takes the largest piece out. Precondition: not empty.
  Interval take_largest() { return remove(by_begin_.find(by_size_.rbegin()->second)); }

 private:
  using ByBegin = std::map<std::byte*, std::size_t>;

  Interval remove(ByBegin::iterator piece) {
    const Interval removed{piece->first, piece->second};
    by_size_.erase({removed.bytes, removed.begin});
    by_begin_.erase(piece);
    bytes_ -= removed.bytes;
    return removed;
  }

  ByBegin by_begin_;
  std::set<std::pair<std::size_t, std::byte*>> by_size_;
  std::size_t bytes_ = 0;
};

}  // namespace loom::device
