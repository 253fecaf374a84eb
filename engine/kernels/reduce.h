// The sum and the maximum behind every reduce-scatter and all-reduce: n inputs, added in the order given.
//
// out[i] = factor * (inputs[0][i] + inputs[1][i] + ...), accumulated in fp32 (fp64 for fp64, exact for integers with
// factor 1), rounded once to `dtype`. The order of addition is the order of `inputs`, so every transport gives the same
// bits. Single-threaded: it runs inside communication threads. `out` may be one of the inputs.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/dtype.h"

namespace loom::kernels {

void sum_in_order(DType dtype, std::span<const void* const> inputs, double factor, std::int64_t elems, void* out);
// The same in fp32 of fp16 or bf16 inputs: as if they were cast first. `out` is none of them.
void sum_in_order_as_fp32(DType input_dtype, std::span<const void* const> inputs, double factor, std::int64_t elems,
                          float* out);

// out[i] = the largest of inputs[k][i]: exact, NaN where one of them is NaN. No bool; `out` may be one of the inputs.
void max_of(DType dtype, std::span<const void* const> inputs, std::int64_t elems, void* out);

}  // namespace loom::kernels
