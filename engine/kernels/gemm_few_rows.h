// Products of a few rows with a matrix stored [N,K] (torch.nn.Linear forward): C^T = B . A^T, so that B, which is
// large, is read in place and A, which is small, is packed. Private to engine/kernels.
//
// Bits  equal gemm_own()'s: an element is the same sum in the same order.
#pragma once

#include "engine/kernels/gemm_cut.h"

namespace loom::kernels {

bool takes_few_rows(const GemmKernels& kernels, const Gemm& op);
void gemm_few_rows(const GemmKernels& kernels, const Gemm& op, int threads, const GemmOperands& operands);

}  // namespace loom::kernels
