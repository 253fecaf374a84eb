// BoxRuns: a rectangular part of a row-major array, as the contiguous runs it is made of.
//
// Box      elements [offset[d], offset[d] + shape[d]) of every dim d of an array of shape `whole`. It may be empty,
//          also at the very end (offset[d] == whole[d]).
// Runs     equally long, as long as possible, in the order of the box's elements: run i holds the box's elements
//          [i * elems(), (i + 1) * elems()), which lie one after another in the whole from begin(i) on. Rows of dim 0
//          are one run, columns one a row. An empty box has none; a scalar has one of one element.
// Units    elements.
// Errors   InvariantError for a box that leaves the whole.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/shape.h"

namespace loom {

// One number per dim.
using Offset = std::vector<std::int64_t>;

bool box_fits(const Shape& whole, const Offset& offset, const Shape& shape);

class BoxRuns {
 public:
  BoxRuns(const Shape& whole, const Offset& offset, const Shape& shape);

  std::int64_t count() const { return count_; }
  std::int64_t elems() const { return elems_; }
  // The first element of run i in the whole.
  std::int64_t begin(std::int64_t i) const;

 private:
  struct OuterDim {
    std::int64_t size;    // of the box
    std::int64_t stride;  // in the whole
  };
  std::vector<OuterDim> outer_;  // the dims that count runs, innermost first
  std::int64_t first_ = 0;       // the box's first element
  std::int64_t count_ = 1;
  std::int64_t elems_ = 1;
};

// "[2, 3] at (0, 4)"
std::string describe_box(const Offset& offset, const Shape& shape);

}  // namespace loom
