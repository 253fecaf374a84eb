#include <Eigen/Core>

#include "engine/core/parallel.h"
#include "engine/kernels/gemm.h"
#include "engine/kernels/gemm_eigen_core.h"

#define LOOM_TEXT_OF(value) #value
#define LOOM_TEXT(value) LOOM_TEXT_OF(value)

namespace loom::kernels {

void gemm(const Gemm& op, const void* a, const void* b, void* c) {
  check_gemm(op);
  if (op.m == 0 || op.n == 0) return;
  if (op.add_to != nullptr) return gemm_then_add(op, a, b, c, gemm);
  if (op.k == 0) return gemm_empty(op, c);
  if (op.ab == DType::kBF16 || op.ab == DType::kF16) return gemm_widened(op, a, b, c, gemm_eigen);
  gemm_eigen(op, a, b, c);
}

void gemm_batched(const Gemm& op, std::int64_t batch, const BatchStride& stride, const void* a, const void* b,
                  void* c) {
  const auto in = element_bytes(op.ab), out = element_bytes(op.c);
  parallel_for(batch, [&](std::int64_t i) {
    gemm(op, static_cast<const char*>(a) + i * stride.a * in, static_cast<const char*>(b) + i * stride.b * in,
         static_cast<char*>(c) + i * stride.c * out);
  });
}

std::string_view gemm_backend() {
  return "Eigen " LOOM_TEXT(EIGEN_WORLD_VERSION) "." LOOM_TEXT(EIGEN_MAJOR_VERSION) "." LOOM_TEXT(EIGEN_MINOR_VERSION);
}

}  // namespace loom::kernels
