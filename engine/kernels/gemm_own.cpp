#include "engine/kernels/gemm_own.h"

#include <string>
#include <vector>

#include "engine/core/log.h"
#include "engine/core/parallel.h"
#include "engine/kernels/convert.h"
#include "engine/kernels/gemm_eigen_core.h"
#include "engine/kernels/gemm_few_rows.h"
#include "engine/kernels/gemm_task.h"

namespace loom::kernels {

void gemm_own(const GemmKernels& kernels, const Gemm& op, int threads, const void* a, const void* b, void* c) {
  const GemmOperands operands{static_cast<const char*>(a), static_cast<const char*>(b), static_cast<char*>(c)};
  if (takes_few_rows(kernels, op)) return gemm_few_rows(kernels, op, threads, operands);
  const GemmCut cut = cut_gemm(op, kernels, threads);
  const std::int64_t rows = cut.rows.count(), tasks = rows * cut.columns.count();
  const auto run = [&](std::int64_t i) {
    const std::int64_t row = i % rows, column = i / rows;
    GemmTask(op, cut, operands)
        .run({cut.rows.begin(row), cut.rows.extent(row)}, {cut.columns.begin(column), cut.columns.extent(column)});
  };
  tasks == 1 ? run(0) : parallel_for(tasks, run);
}

namespace {

// A product that uses whole and broken tiles, against sums in double.
bool multiplies_right(const GemmKernels& kernels, DType dtype) {
  constexpr std::int64_t kRows = 37, kColumns = 67, kInner = 70;
  const auto value = [](std::int64_t i) { return static_cast<float>(i * 37 % 17 - 8); };  // exact in bf16
  std::vector<float> a(kRows * kInner), b(kInner * kColumns), c(kRows * kColumns);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = value(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = value(static_cast<std::int64_t>(i) + 5);
  std::vector<bf16> a16(a.size()), b16(b.size());
  narrow(a.data(), kRows * kInner, a16.data());
  narrow(b.data(), kInner * kColumns, b16.data());
  Gemm op;
  op.m = kRows, op.n = kColumns, op.k = kInner, op.ab = dtype;
  const bool is_fp32 = dtype == DType::kF32;
  gemm_own(kernels, op, 1, is_fp32 ? static_cast<const void*>(a.data()) : a16.data(),
           is_fp32 ? static_cast<const void*>(b.data()) : b16.data(), c.data());
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    double sum = 0;
    for (std::int64_t k = 0; k < kInner; ++k)
      sum += static_cast<double>(a[i / kColumns * kInner + k]) * b[k * kColumns + i % kColumns];
    if (c[i] != sum) return false;  // whole numbers below 2^24: exact in any order
  }
  return true;
}

// The best set that multiplies a small product right: one that does not (a faulty processor or hypervisor) is left out.
const GemmKernels* best_kernels() {
  static const GemmKernels* const best = []() -> const GemmKernels* {
    const GemmKernelSets sets = gemm_kernel_sets();
    for (int i = sets.count - 1; i >= 0; --i) {
      if (multiplies_right(*sets.first[i], DType::kF32) && multiplies_right(*sets.first[i], DType::kBF16))
        return sets.first[i];
      log_warning("this processor names {}, but a small matrix product with it is wrong; it is not used",
                  sets.first[i]->name);
    }
    return nullptr;
  }();
  return best;
}

void multiply(const Gemm& op, int threads, const void* a, const void* b, void* c) {
  const GemmKernels* const kernels = op.k == 0 || op.ab == DType::kF64 ? nullptr : best_kernels();
  if (kernels != nullptr) return gemm_own(*kernels, op, threads, a, b, c);
  if (op.add_to != nullptr) return gemm_then_add(op, a, b, c, gemm);
  if (op.k == 0) return gemm_empty(op, c);
  if (op.ab == DType::kF64) return gemm_eigen(op, a, b, c);
  op.ab == DType::kF32 ? gemm_eigen(op, a, b, c) : gemm_widened(op, a, b, c, gemm_eigen);
}

}  // namespace

void gemm(const Gemm& op, const void* a, const void* b, void* c) {
  check_gemm(op);
  if (op.m == 0 || op.n == 0) return;
  multiply(op, parallel_threads(), a, b, c);
}

void gemm_batched(const Gemm& op, std::int64_t batch, const BatchStride& stride, const void* a, const void* b,
                  void* c) {
  check_gemm(op);
  if (op.m == 0 || op.n == 0) return;
  const auto in = element_bytes(op.ab), out = element_bytes(op.c);
  const int threads = batch == 1 ? parallel_threads() : 1;
  parallel_for(batch, [&](std::int64_t i) {
    multiply(op, threads, static_cast<const char*>(a) + i * stride.a * in,
             static_cast<const char*>(b) + i * stride.b * in, static_cast<char*>(c) + i * stride.c * out);
  });
}

std::string_view gemm_backend() {
  static const std::string text = [] {
    const GemmKernels* const kernels = best_kernels();
    return kernels == nullptr ? std::string("own (Eigen on this processor)") : std::string("own ") + kernels->name;
  }();
  return text;
}

}  // namespace loom::kernels
