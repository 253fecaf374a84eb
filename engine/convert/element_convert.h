// Converts elements of one dtype to another.
//
// Rounding  to nearest, ties to even. fp64 becomes fp32 first on its way to bf16 and fp16, as in PyTorch.
// NaN       stays a NaN; its payload may be cut.
// Overflow  a finite value above the largest of the new dtype becomes inf, and is counted.
// Threads   any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/dtype.h"

namespace loom::checkpoint {

// Returns the number of finite values that became inf. Precondition: floating dtypes, or equal ones; as many elements
// on both sides. Spans need no alignment.
std::int64_t convert_elements(DType from, std::span<const std::byte> elements, DType to,
                              std::span<std::byte> converted);

// One element as a number; whole numbers above 2^53 are rounded.
double element_at(DType dtype, const std::byte* element);

}  // namespace loom::checkpoint
