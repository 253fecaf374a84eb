// The chunk rule of dim 0: N ranks, D rows, c = ceil(D / N) rows stored on every rank, the tail zero-padded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/core/rounding.h"

namespace loom::sharding {

struct Chunk {
  std::int64_t padded_rows = 0;  // c
  std::int64_t row_begin = 0;    // first global row of the rank, D if it owns none
  std::int64_t rows = 0;         // max(0, min(c, D - r * c))

  bool operator==(const Chunk&) const = default;
};

constexpr Chunk chunk_of(std::int64_t dim0, int rank, int ranks) {
  const std::int64_t c = ceil_div<std::int64_t>(dim0, ranks);
  const std::int64_t begin = std::min(dim0, rank * c);
  return {c, begin, std::min(dim0, (rank + 1) * c) - begin};
}

}  // namespace loom::sharding
