#include "engine/kernels/gemm_eigen_core.h"

#include <Eigen/Core>
#include <cstring>
#include <memory>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/convert.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/gemm_tiles.h"

namespace loom::kernels {
namespace {

template <class T>
using Rows = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;
template <class T>
using ConstRows =
    Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;

template <class T, class Left, class Right>
void assign(const Gemm& op, const Left& left, const Right& right, const T* bias, Rows<T>& out) {
  if (op.accumulate) {
    out.noalias() += left * right;
    return;
  }
  out.noalias() = left * right;
  if (bias != nullptr) {
    out.rowwise() += Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>(bias, out.cols());
  }
}

struct Tile {
  std::int64_t row, rows, column, columns;
};

template <class T>
void multiply_tile(const Gemm& op, const Tile& t, const T* a, const T* b, T* c) {
  const T* left = a + (op.transpose_a ? t.row : t.row * op.k);
  const T* right = b + (op.transpose_b ? t.column * op.k : t.column);
  const T* bias = op.bias == nullptr ? nullptr : static_cast<const T*>(op.bias) + t.column;
  Rows<T> out(c + t.row * op.n + t.column, t.rows, t.columns, Eigen::OuterStride<>(op.n));
  const ConstRows<T> left_plain(left, op.transpose_a ? op.k : t.rows, op.transpose_a ? t.rows : op.k,
                                Eigen::OuterStride<>(op.transpose_a ? op.m : op.k));
  const ConstRows<T> right_plain(right, op.transpose_b ? t.columns : op.k, op.transpose_b ? op.k : t.columns,
                                 Eigen::OuterStride<>(op.transpose_b ? op.k : op.n));
  if (op.transpose_a && op.transpose_b)
    return assign<T>(op, left_plain.transpose(), right_plain.transpose(), bias, out);
  if (op.transpose_a) return assign<T>(op, left_plain.transpose(), right_plain, bias, out);
  if (op.transpose_b) return assign<T>(op, left_plain, right_plain.transpose(), bias, out);
  assign<T>(op, left_plain, right_plain, bias, out);
}

template <class T>
void multiply(const Gemm& op, const void* a, const void* b, void* c) {
  const Cut rows(op.m, 256, 16), columns(op.n, 512, 16);
  parallel_for(rows.parts() * columns.parts(), [&](std::int64_t i) {
    const std::int64_t row = i / columns.parts(), column = i % columns.parts();
    const Tile tile{rows.begin(row), rows.length(row), columns.begin(column), columns.length(column)};
    multiply_tile<T>(op, tile, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(c));
  });
}

constexpr std::int64_t kConvertChunk = 1 << 16;

template <class From, class To, class Convert>
void convert_chunks(const From* from, std::int64_t count, To* to, Convert convert) {
  const Cut chunks(count, kConvertChunk, 64);
  parallel_for(chunks.parts(),
               [&](std::int64_t i) { convert(from + chunks.begin(i), chunks.length(i), to + chunks.begin(i)); });
}

template <class Half>
void widen_all(const void* from, std::int64_t count, float* to) {
  convert_chunks(static_cast<const Half*>(from), count, to,
                 [](const Half* x, std::int64_t n, float* y) { widen(x, n, y); });
}
template <class Half>
void narrow_all(const float* from, std::int64_t count, void* to) {
  convert_chunks(from, count, static_cast<Half*>(to), [](const float* x, std::int64_t n, Half* y) { narrow(x, n, y); });
}

std::unique_ptr<float[]> floats(std::int64_t count) {
  return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count));
}

template <class Half>
void widened(const Gemm& op, const void* a, const void* b, void* c, const MatrixProduct& product) {
  const auto left = floats(op.m * op.k), right = floats(op.k * op.n);
  widen_all<Half>(a, op.m * op.k, left.get());
  widen_all<Half>(b, op.k * op.n, right.get());
  std::unique_ptr<float[]> bias, out;
  Gemm fp32 = op;
  fp32.ab = fp32.c = DType::kF32;
  if (op.bias != nullptr) {
    bias = floats(op.n);
    widen_all<Half>(op.bias, op.n, bias.get());
    fp32.bias = bias.get();
  }
  if (op.c == DType::kF32) return product(fp32, left.get(), right.get(), c);
  out = floats(op.m * op.n);
  if (op.accumulate) widen_all<Half>(c, op.m * op.n, out.get());
  product(fp32, left.get(), right.get(), out.get());
  narrow_all<Half>(out.get(), op.m * op.n, c);
}

template <class T>
void spread_bias(const Gemm& op, float* c) {
  for (std::int64_t i = 0; i < op.m * op.n; ++i) c[i] = static_cast<float>(static_cast<const T*>(op.bias)[i % op.n]);
}

}  // namespace

void gemm_eigen(const Gemm& op, const void* a, const void* b, void* c) {
  op.ab == DType::kF64 ? multiply<double>(op, a, b, c) : multiply<float>(op, a, b, c);
}

void gemm_widened(const Gemm& op, const void* a, const void* b, void* c, const MatrixProduct& product) {
  op.ab == DType::kBF16 ? widened<bf16>(op, a, b, c, product) : widened<f16>(op, a, b, c, product);
}

void gemm_then_add(const Gemm& op, const void* a, const void* b, void* c, const MatrixProduct& product) {
  Gemm alone = op;
  alone.add_to = nullptr;
  product(alone, a, b, c);
  add(op.c, op.m * op.n, op.add_to, c, op.add_to);
}

void gemm_empty(const Gemm& op, void* c) {
  if (op.accumulate) return;
  const std::size_t row_bytes = op.n * element_bytes(op.c);
  if (op.bias == nullptr) {
    if (op.m > 0 && op.n > 0) std::memset(c, 0, static_cast<std::size_t>(op.m) * row_bytes);
  } else if (op.c == op.ab) {
    for (std::int64_t row = 0; row < op.m; ++row) {
      std::memcpy(static_cast<char*>(c) + static_cast<std::size_t>(row) * row_bytes, op.bias, row_bytes);
    }
  } else {
    op.ab == DType::kBF16 ? spread_bias<bf16>(op, static_cast<float*>(c))
                          : spread_bias<f16>(op, static_cast<float*>(c));
  }
}

void check_gemm(const Gemm& op) {
  require(op.m >= 0 && op.n >= 0 && op.k >= 0, "gemm sizes must not be negative, got m={} n={} k={}", op.m, op.n, op.k);
  check_model(is_floating(op.ab), "gemm takes fp32, bf16, fp16 or fp64, got {}; cast it", name(op.ab));
  require(op.c == op.ab || (op.c == DType::kF32 && op.ab != DType::kF64), "gemm of {} writes {}{}, not {}", name(op.ab),
          name(op.ab), op.ab == DType::kF64 || op.ab == DType::kF32 ? "" : " or fp32", name(op.c));
  require(op.bias == nullptr || !op.accumulate, "gemm adds a bias or accumulates, not both");
  require(op.add_to == nullptr || !op.accumulate, "gemm accumulates or adds to something else, not both");
}

}  // namespace loom::kernels
