// TokenSlices: the parts of a sequence that ranks share, cut into slices whose collectives run one by one. Private to
// engine/dist.
//
// Letters  t ranks; B rows of a batch; L tokens of a row on each rank, t L in the whole row; n slices.
// Slice i  the rows [i R / n, (i + 1) R / n) of the R = B L rows of every rank, rounded down; some may be empty where R
//          is less than n.
// Whole    [B, t L, K]: a slice is a piece of each rank's part of each row of the batch that it meets.
// Stack    [t rows(i), K]: the slice's rows of rank 0, then those of rank 1, ...: what a reduce-scatter takes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/shape.h"
#include "engine/tensor/ops/linear_rows.h"

namespace loom::dist {

class TokenSlices {
 public:
  // Of x [B, L, K], a rank's part.
  TokenSlices(const Shape& part, int ranks, int slices);

  int count() const { return slices_; }
  int ranks() const { return ranks_; }
  // Of a rank's rows.
  std::int64_t begin(int i) const { return batch_ * tokens_ * i / slices_; }
  std::int64_t rows(int i) const { return begin(i + 1) - begin(i); }

  // What lies in one row of the batch.
  struct Segment {
    std::int64_t first = 0;   // row of the slice
    ops::RowRanges in_whole;  // one range a rank
    ops::RowRanges in_stack;
  };
  std::vector<Segment> segments(int i) const;
  // The whole sequence of such parts, and the part of such a whole.
  Shape whole_of(const Shape& part) const;

 private:
  std::int64_t batch_, tokens_;
  int ranks_, slices_;
};

// Of x [B, t L, K]: [B, L, K]. ModelError where t does not divide the tokens.
Shape part_of_whole(const Shape& whole, int ranks);

}  // namespace loom::dist
