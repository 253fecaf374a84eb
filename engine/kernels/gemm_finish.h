// Finishes the sums of a register tile that its instruction set left in memory. Private to engine/kernels.
#pragma once

#include "engine/kernels/gemm_kernels.h"

namespace loom::kernels {

// Adds t.sums, t.bias and, if requested, C to `sums` [rows, width], and writes C in its type, rounded once. At most 64
// columns.
void finish_tile(const GemmTile& t, const float* sums, std::int64_t width);

}  // namespace loom::kernels
