// Matrix products on row-major matrices: C[M,N] = op(A)[M,K] . op(B)[K,N] (+ bias) (+ C).
//
// Storage    transpose_a: A is stored [K,M], else [M,K]; transpose_b: B is stored [N,K], else [K,N]. All dense.
// dtypes     A and B share `ab`; fp32, bf16, fp16 and fp64. Products of bf16/fp16 are exact and accumulate in fp32; C
//            is `ab` or fp32 (fp64 for fp64), rounded once.
// Bits       do not depend on the number of threads. With gemm_own.cpp the bits of an element depend only on its row of
//            op(A), its column of op(B) and K; in fp32 they are the same on every processor with kernels there.
// Threads    run through parallel_for.
// Source     gemm_own.cpp (kernels for AVX2, AVX-512, AVX-512 bf16 and AMX, chosen at run time; Eigen elsewhere and for
//            fp64), gemm_onednn.cpp (libdnnl, single-threaded in the calling thread) or gemm_eigen.cpp, chosen by
//            linking (LOOM_GEMM).
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/core/dtype.h"

namespace loom::kernels {

struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType ab = DType::kF32;
  DType c = DType::kF32;
  bool accumulate = false;     // C += instead of C =
  const void* bias = nullptr;  // [N] in dtype `ab`, added once per row; not together with accumulate
  // [M,N] in C's dtype, apart from C: the product, rounded as C would be, is added to it and rounded again: the bits of
  // a product and an addition after it. C is then room for sums, and holds nothing of meaning after it. Not together
  // with accumulate.
  void* add_to = nullptr;
};

// m, n, k >= 0; k = 0 gives zeros (or leaves C when accumulating).
void gemm(const Gemm& op, const void* a, const void* b, void* c);

// `batch` independent products with constant strides between them (elements). No bias, no add_to.
struct BatchStride {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t c = 0;
};
void gemm_batched(const Gemm& op, std::int64_t batch, const BatchStride& stride, const void* a, const void* b, void* c);

// "own AVX-512 bf16", "oneDNN 2.6.3" or "Eigen 3.4.0": what multiplies here.
std::string_view gemm_backend();

}  // namespace loom::kernels
