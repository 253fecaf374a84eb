// Matrix products by Eigen, in fp32 and fp64, and the detour of 16-bit floats through fp32: what both backends share.
// Private to engine/kernels.
//
// Precondition of all   op.m, op.n, op.k > 0.
#pragma once

#include <functional>

#include "engine/kernels/gemm.h"

namespace loom::kernels {

// fp32 or fp64 (op.ab == op.c), any transposes, bias and accumulation; tiles through parallel_for.
void gemm_eigen(const Gemm& op, const void* a, const void* b, void* c);

// Widens bf16 or fp16 operands (and bias) to fp32, runs `product` in fp32 and rounds the result once to op.c.
using MatrixProduct = std::function<void(const Gemm& op, const void* a, const void* b, void* c)>;
void gemm_widened(const Gemm& op, const void* a, const void* b, void* c, const MatrixProduct& product);

// `product` into C, then C added to op.add_to: for backends that do not add it within their products.
void gemm_then_add(const Gemm& op, const void* a, const void* b, void* c, const MatrixProduct& product);

// The result of a product with k = 0: the bias or zeros, or C unchanged when accumulating.
void gemm_empty(const Gemm& op, void* c);

// Throws ModelError for a dtype without products, InvariantError when op has sizes or dtypes the contract excludes.
void check_gemm(const Gemm& op);

}  // namespace loom::kernels
