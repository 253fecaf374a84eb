// The chunk rule: N ranks, D rows of the dim that is cut, c = ceil(D / N) rows stored on every rank, the tail
// zero-padded. On a dim other than 0, N divides D.
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

constexpr Chunk chunk_of(std::int64_t rows, int rank, int ranks) {
  const std::int64_t c = ceil_div<std::int64_t>(rows, ranks);
  const std::int64_t begin = std::min(rows, rank * c);
  return {c, begin, std::min(rows, (rank + 1) * c) - begin};
}

// Where the chunks of a parameter lie in the whole of it: `runs` times, one after the other, the N chunks of
// `run_elems` elements each. 1 run on dim 0.
struct ChunkRuns {
  std::int64_t runs = 1;
  std::int64_t run_elems = 0;
};

}  // namespace loom::sharding
