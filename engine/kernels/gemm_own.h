// Matrix products with a given set of register tiles. Private to engine/kernels.
#pragma once

#include "engine/kernels/gemm.h"
#include "engine/kernels/gemm_kernels.h"

namespace loom::kernels {

// op.m, op.n, op.k > 0; op.ab fp32, bf16 or fp16. Cut for `threads`, run through parallel_for.
void gemm_own(const GemmKernels& kernels, const Gemm& op, int threads, const void* a, const void* b, void* c);

}  // namespace loom::kernels
