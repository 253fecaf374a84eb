#include "engine/kernels/gemm_few_rows.h"

#include "engine/core/parallel.h"
#include "engine/kernels/gemm_task.h"
#include "engine/kernels/scratch.h"

namespace loom::kernels {
namespace {

// More rows pay for packing B; fewer rows do not fill a vector, fewer columns do not pay for turning C.
constexpr std::int64_t kLeastRows = 16;
constexpr std::int64_t kLeastRowsOfBf16 = 32;
constexpr std::int64_t kMostRows = 96;
constexpr std::int64_t kLeastColumns = 64;
// Columns of C that a thread multiplies before it writes them.
constexpr std::int64_t kColumnsAtOnce = 256;

template <class T>
float widened(const void* values, std::int64_t i) {
  return static_cast<float>(static_cast<const T*>(values)[i]);
}

// C[rows, columns] = turned^T (+ bias); `turned` is [columns, rows].
template <class In, class Out>
void write_turned(const float* turned, std::int64_t rows, std::int64_t columns, const void* bias, Out* c,
                  std::int64_t c_row) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const float sum = turned[column * rows + row];
      c[row * c_row + column] = Out(bias == nullptr ? sum : sum + widened<In>(bias, column));
    }
  }
}

void write_turned(const Gemm& op, const float* turned, std::int64_t first, std::int64_t columns, void* c) {
  const char* bias = op.bias == nullptr ? nullptr : static_cast<const char*>(op.bias) + first * element_bytes(op.ab);
  if (op.ab == DType::kF32) {
    write_turned<float>(turned, op.m, columns, bias, static_cast<float*>(c) + first, op.n);
  } else if (op.c == DType::kF32) {
    write_turned<bf16>(turned, op.m, columns, bias, static_cast<float*>(c) + first, op.n);
  } else {
    write_turned<bf16>(turned, op.m, columns, bias, static_cast<bf16*>(c) + first, op.n);
  }
}

}  // namespace

bool takes_few_rows(const GemmKernels& kernels, const Gemm& op) {
  return are_as_stored(words_of(op, kernels)) && op.transpose_b && !op.transpose_a && !op.accumulate &&
         op.add_to == nullptr && op.m <= kMostRows && op.m >= (op.ab == DType::kF32 ? kLeastRows : kLeastRowsOfBf16) &&
         op.n >= kLeastColumns && op.n >= 2 * op.m;
}

void gemm_few_rows(const GemmKernels& kernels, const Gemm& op, int threads, const GemmOperands& operands) {
  Gemm turned;
  turned.m = op.n, turned.n = op.m, turned.k = op.k, turned.transpose_b = true, turned.ab = op.ab;
  const Pieces tasks = equal_pieces(op.n, std::max<std::int64_t>(kColumnsAtOnce, op.n / threads), 16);
  parallel_for(tasks.count(), [&](std::int64_t task) {
    static thread_local Scratch scratch;
    Gemm some = turned;
    const Pieces pieces{tasks.extent(task), kColumnsAtOnce};
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      const std::int64_t first = tasks.begin(task) + pieces.begin(i);
      some.m = pieces.extent(i);
      float* const sums = scratch.get<float>(kColumnsAtOnce * op.m);
      const GemmCut cut = cut_gemm(some, kernels, 1);
      const char* const rows = operands.b + first * op.k * element_bytes(op.ab);
      GemmTask(some, cut, {rows, operands.a, reinterpret_cast<char*>(sums)}).run({0, some.m}, {0, some.n});
      write_turned(op, sums, first, some.m, operands.c);
    }
  });
}

}  // namespace loom::kernels
