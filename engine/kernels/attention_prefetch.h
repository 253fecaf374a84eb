// Memory that attention will pack or write soon, brought near while products run. Private to engine/kernels.
//
// Why   rows of a head lie a stride apart, so the processor does not guess them; packed when they are needed they cost
//       as much time as L3 or memory takes: 8 % of a forward and 13 % of a backward at 512 positions of width 64.
//       Asked for line by line between the steps of products they cost next to nothing; in bursts as much as before.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/core/rounding.h"

namespace loom::kernels::attn {

inline constexpr std::int64_t kLineBytes = 64;

// Rows to prefetch: a product prefetches a line, then takes `steps` steps.
struct Prefetch {
  const char* row = nullptr;
  std::int64_t stride = 0;  // bytes
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t steps = 1;
};

// Rows that wait to be prefetched, in order. Rows that find no place are left out: they are read like any other
// memory.
class Ahead {
 public:
  // Forgets the waiting rows.
  void clear() { first_ = end_ = 0; }

  // `count` rows of `width` elements, `stride` elements apart.
  template <class T>
  void add(const T* row, std::int64_t stride, std::int64_t width, std::int64_t count) {
    if (count <= 0 || end_ == kMostParts) return;
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
    parts_[static_cast<std::size_t>(end_++)] = {.row = reinterpret_cast<const char*>(row),
                                                .stride = stride * kBytes,
                                                .rows = count,
                                                .row_bytes = width * kBytes};
  }

  // Spreads the waiting rows over about `steps` steps of products.
  void spread(std::int64_t steps) {
    std::int64_t lines = 0;
    for (int i = first_; i < end_; ++i) lines += part(i).rows * lines_of_row(part(i));
    steps_ = lines == 0 ? 1 : std::clamp<std::int64_t>(steps * 3 / 4 / lines, 1, kMostSteps);
  }

  // As many rows as a product of `steps` steps can prefetch; none for an empty product, whose steps may be negative.
  Prefetch take(std::int64_t steps) {
    if (first_ == end_ || steps <= 0) return {};
    Prefetch& all = part(first_);
    Prefetch some = all;
    some.steps = steps_;
    some.rows = std::min(all.rows, steps / (steps_ * lines_of_row(all)));
    all.rows -= some.rows;
    all.row += some.rows * all.stride;
    if (all.rows == 0) ++first_;
    return some;
  }

 private:
  static constexpr int kMostParts = 8;
  static constexpr std::int64_t kMostSteps = 4;

  static std::int64_t lines_of_row(const Prefetch& part) { return ceil_div(part.row_bytes, kLineBytes); }
  Prefetch& part(int index) { return parts_[static_cast<std::size_t>(index)]; }

  std::array<Prefetch, kMostParts> parts_;
  int first_ = 0, end_ = 0;
  std::int64_t steps_ = 1;
};

}  // namespace loom::kernels::attn
