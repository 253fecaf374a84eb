#include "engine/kernels/strided.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include "engine/core/rng.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Real<T> real(T value) {
  return static_cast<Real<T>>(value);
}

// Where the row with index `row` begins in an operand: rows are all dims but the last.
std::int64_t row_offset(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                        std::int64_t row) {
  std::int64_t offset = 0;
  for (std::size_t d = sizes.size() - 1; d-- > 0;) {
    offset += row % sizes[d] * strides[d];
    row /= sizes[d];
  }
  return offset;
}

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  std::int64_t elems = 1;
  for (const std::int64_t size : sizes) elems *= size;
  return elems;
}

template <class T, class Op>
void binary_rows(const BroadcastDims& dims, const T* a, const T* b, T* y, Op op) {
  const std::int64_t elems = product(dims.sizes);
  if (elems == 0) return;
  const std::int64_t cols = dims.sizes.empty() ? 1 : dims.sizes.back();
  const std::int64_t step_a = dims.sizes.empty() ? 0 : dims.a.back();
  const std::int64_t step_b = dims.sizes.empty() ? 0 : dims.b.back();
  for_pieces(elems / cols, rows_of_tile(cols), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; ++row) {
      const T* u = a + (dims.sizes.empty() ? 0 : row_offset(dims.sizes, dims.a, row));
      const T* v = b + (dims.sizes.empty() ? 0 : row_offset(dims.sizes, dims.b, row));
      T* out = y + row * cols;
      for (std::int64_t i = 0; i < cols; ++i) out[i] = T(op(real(u[i * step_a]), real(v[i * step_b])));
    }
  });
}

template <class T, class Op>
void map_plain(std::int64_t elems, const T* x, T* y, Op op) {
  for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = begin; i < begin + count; ++i) y[i] = T(op(real(x[i])));
  });
}

template <class T, class To>
void sum_dim_as(const DimSum& op, const T* x, To* y) {
  using S = Real<T>;
  for_pieces(op.outer, rows_of_tile(op.dim * op.inner), [&](std::int64_t begin, std::int64_t count) {
    std::vector<S> sums(static_cast<std::size_t>(op.inner));
    for (std::int64_t o = begin; o < begin + count; ++o) {
      std::fill(sums.begin(), sums.end(), S{0});
      for (std::int64_t k = 0; k < op.dim; ++k) {
        const T* row = x + (o * op.dim + k) * op.inner;
        for (std::int64_t i = 0; i < op.inner; ++i) sums[static_cast<std::size_t>(i)] += real(row[i]);
      }
      To* out = y + o * op.inner;
      for (std::int64_t i = 0; i < op.inner; ++i) {
        out[i] = To(static_cast<S>(op.factor) * sums[static_cast<std::size_t>(i)]);
      }
    }
  });
}

// x[0, count) with the numbers from `first` on.
template <class T>
void drop(const Dropout& op, std::uint64_t key, std::uint64_t first, std::int64_t count, const T* x, T* y) {
  constexpr std::int64_t kTogether = 1024;
  const auto kept = static_cast<Real<T>>(1 / (1 - op.p));
  const auto least = static_cast<std::uint64_t>(std::ceil(op.p * 0x1p32));
  std::array<std::uint32_t, kTogether> words;
  for (std::int64_t done = 0; done < count; done += kTogether) {
    const std::int64_t some = std::min(kTogether, count - done);
    words_at(key, first + static_cast<std::uint64_t>(done), std::span(words).first(static_cast<std::size_t>(some)));
    for (std::int64_t i = 0; i < some; ++i) {
      const bool keep = words[static_cast<std::size_t>(i)] >= least;
      y[done + i] = keep ? T(real(x[done + i]) * kept) : T(Real<T>{0});
    }
  }
}

// Elements [begin, begin + count).
template <class T>
void drop_piece(const Dropout& op, std::int64_t begin, std::int64_t count, const T* x, T* y) {
  auto next = std::ranges::upper_bound(op.runs, begin / op.width, {}, &DropoutRun::row);
  for (std::int64_t at = begin; at < begin + count;) {
    const std::int64_t row = at / op.width, column = at % op.width;
    while (next != op.runs.end() && next->row <= row) ++next;
    const DropoutRun& run = next[-1];
    const std::int64_t some = std::min(op.width - column, begin + count - at);
    const std::uint64_t first = run.first + (static_cast<std::uint64_t>(row - run.row) << 32);
    drop(op, run.key, first + static_cast<std::uint64_t>(column), some, x + at, y + at);
    at += some;
  }
}

}  // namespace

void binary(BinaryOp op, DType dtype, const BroadcastDims& dims, const void* a, const void* b, void* y) {
  visit_float_dtype("binary", dtype, [&]<class T>() {
    const auto run = [&](auto f) {
      binary_rows<T>(dims, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), f);
    };
    switch (op) {
      case BinaryOp::kAdd:
        return run([](auto u, auto v) { return u + v; });
      case BinaryOp::kSub:
        return run([](auto u, auto v) { return u - v; });
      case BinaryOp::kMul:
        return run([](auto u, auto v) { return u * v; });
      case BinaryOp::kDiv:
        return run([](auto u, auto v) { return u / v; });
    }
  });
}

void unary(UnaryOp op, DType dtype, std::int64_t elems, const void* x, void* y) {
  visit_float_dtype(op == UnaryOp::kExp ? "exp" : "log", dtype, [&]<class T>() {
    const auto run = [&](auto f) { map_plain<T>(elems, static_cast<const T*>(x), static_cast<T*>(y), f); };
    op == UnaryOp::kExp ? run([](auto v) { return std::exp(v); }) : run([](auto v) { return std::log(v); });
  });
}

void sum_dim(const DimSum& op, const void* x, void* y) {
  visit_float_dtype("sum_dim", op.dtype, [&]<class T>() {
    const T* from = static_cast<const T*>(x);
    op.to == op.dtype ? sum_dim_as<T>(op, from, static_cast<T*>(y)) : sum_dim_as<T>(op, from, static_cast<Real<T>*>(y));
  });
}

void repeat_dim(const DimSum& op, const void* x, void* y) {
  visit_float_dtype("repeat_dim", op.dtype, [&]<class T>() {
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(y);
    const auto factor = static_cast<Real<T>>(op.factor);
    for_pieces(op.outer * op.dim, rows_of_tile(op.inner), [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t row = begin; row < begin + count; ++row) {
        const T* in = from + row / op.dim * op.inner;
        for (std::int64_t i = 0; i < op.inner; ++i) to[row * op.inner + i] = T(factor * real(in[i]));
      }
    });
  });
}

void permute_dims(std::int64_t element_bytes, const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
                  const void* x, void* y) {
  if (product(sizes) == 0) return;
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  // Trailing dims that stay are copied as one run.
  std::size_t moved = sizes.size();
  std::int64_t run = 1;
  while (moved > 0 && order[moved - 1] == static_cast<int>(moved) - 1) run *= sizes[--moved];
  std::vector<std::int64_t> out_sizes, out_strides;
  for (std::size_t d = 0; d < moved; ++d) {
    out_sizes.push_back(sizes[static_cast<std::size_t>(order[d])]);
    out_strides.push_back(strides[static_cast<std::size_t>(order[d])]);
  }
  out_sizes.push_back(1);  // row_offset() leaves the last dim out
  out_strides.push_back(0);
  const auto bytes = static_cast<std::size_t>(run * element_bytes);
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(y);
  for_pieces(product(out_sizes), rows_of_tile(run), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; ++row) {
      std::memcpy(to + row * run * element_bytes, from + row_offset(out_sizes, out_strides, row) * element_bytes,
                  bytes);
    }
  });
}

void dropout(const Dropout& op, const void* x, void* y) {
  visit_float_dtype("dropout", op.dtype, [&]<class T>() {
    for_pieces(op.elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
      drop_piece(op, begin, count, static_cast<const T*>(x), static_cast<T*>(y));
    });
  });
}

void bag_sum(const Bags& op, const void* x, void* y) {
  for (std::size_t bag = 0; bag + 1 < op.begin.size(); ++bag) {
    const std::int64_t rows = op.begin[bag + 1] - op.begin[bag];
    const std::int64_t bytes = op.dim * element_bytes(op.dtype);
    sum_dim({op.dtype, op.dtype, 1, rows, op.dim, op.mean && rows > 0 ? 1.0 / static_cast<double>(rows) : 1.0},
            static_cast<const std::byte*>(x) + op.begin[bag] * bytes,
            static_cast<std::byte*>(y) + static_cast<std::int64_t>(bag) * bytes);
  }
}

void bag_sum_grad(const Bags& op, const void* dy, void* dx) {
  for (std::size_t bag = 0; bag + 1 < op.begin.size(); ++bag) {
    const std::int64_t rows = op.begin[bag + 1] - op.begin[bag];
    const std::int64_t bytes = op.dim * element_bytes(op.dtype);
    if (rows == 0) continue;
    repeat_dim({op.dtype, op.dtype, 1, rows, op.dim, op.mean ? 1.0 / static_cast<double>(rows) : 1.0},
               static_cast<const std::byte*>(dy) + static_cast<std::int64_t>(bag) * bytes,
               static_cast<std::byte*>(dx) + op.begin[bag] * bytes);
  }
}

}  // namespace loom::kernels
