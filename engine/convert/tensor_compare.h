// Two tensors, element by element, in pieces of bounded size.
//
// Equal    elements are equal when their bits are, whatever they stand for; of different dtypes, when their values are.
// Threads  one thread at a time.
// Errors   those of the readers.
#pragma once

#include <cstdint>

#include "engine/convert/tensor_source.h"

namespace loom::checkpoint {

struct Difference {
  std::int64_t elements = 0;  // that differ
  double largest = 0;         // absolute difference; NaN where one of the two is a NaN, inf beside a finite value
  Offset first;               // of the first that differs
  double first_a = 0;
  double first_b = 0;
};

// Precondition: one shape.
Difference compare(const SourceTensor& a, const SourceTensor& b);

}  // namespace loom::checkpoint
