// What this machine can do, measured in the same process as the benchmark that asks: the denominators of every ratio.
//
// Method   best of several short runs; `threads` std::threads start together and the slowest counts.
// Units    FLOP/s and bytes/s of all threads together; a memcpy of n bytes counts 2n (read + write), a triad 3 arrays.
#pragma once

#include <cstddef>

#include "engine/core/dtype.h"

namespace loom::bench {

// Multiply-adds from registers: FMA in fp32 or fp64. kBF16 is the better of vdpbf16ps, where this program was
// compiled for it, and the fp32 figure, as bf16 can be widened; kF16 is the fp32 figure.
double fma_peak_flops(DType dtype, int threads);

// STREAM triad a = b + s * c, plain stores.
double triad_bytes_per_second(int threads, std::size_t bytes_per_array);

double memcpy_bytes_per_second(int threads, std::size_t bytes);

}  // namespace loom::bench
