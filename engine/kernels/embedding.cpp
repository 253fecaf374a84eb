#include <cstring>
#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

template <class I>
void check_ids(std::int64_t count, std::int64_t vocab, const I* ids) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int64_t>(ids[i]);
    if (id >= 0 && id < vocab) continue;
    config_error(
        "embedding: id {} at position {} is outside the vocabulary [0, {}); the tokenizer and the model's "
        "vocab_size do not fit",
        id, i, vocab);
  }
}

// Calls body(position, row of the table) for every id that the table has.
template <class I, class Body>
void for_rows(const Embedding& op, const I* ids, Body&& body) {
  for (std::int64_t i = 0; i < op.count; ++i) {
    const std::int64_t row = static_cast<std::int64_t>(ids[i]) - op.first;
    if (row >= 0 && row < op.table_rows()) body(i, static_cast<std::size_t>(row));
  }
}

// The positions of every row of the table, in order: row v has order[first[v]] ... order[first[v + 1] - 1].
struct PositionsByRow {
  template <class I>
  PositionsByRow(const Embedding& op, const I* ids) : first(static_cast<std::size_t>(op.table_rows() + 1)) {
    for_rows(op, ids, [&](std::int64_t, std::size_t row) { ++first[row + 1]; });
    for (std::size_t v = 1; v < first.size(); ++v) first[v] += first[v - 1];
    order.resize(static_cast<std::size_t>(first.back()));
    std::vector<std::int64_t> next(first.begin(), first.end() - 1);
    for_rows(op, ids, [&](std::int64_t i, std::size_t row) { order[static_cast<std::size_t>(next[row]++)] = i; });
  }
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> order;
};

// The value that a T holds after it was stored there.
template <class T, class V>
V rounded_to(V value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
    return simd::widen(simd::narrow(value, T{}), T{});
  } else {
    return value;
  }
}

// The sum of some rows' gradients, rounded to T once or after each row.
template <bool kRoundsEach, class T, class Put>
void sum_rows(const std::int64_t* positions, std::int64_t count, std::int64_t dim, const T* dout, T* row, Put put) {
  using V = simd::Pack<T>;
  simd::put_packs<V>(dim, row, put, [=](std::int64_t i, auto part) {
    V total{};
    for (std::int64_t k = 0; k < count; ++k) {
      total += simd::load<V>(dout + positions[k] * dim + i, part);
      if constexpr (kRoundsEach) total = rounded_to<T>(total);
    }
    return total;
  });
}

}  // namespace

void embedding_forward(const Embedding& op, const void* ids, const void* table, void* out) {
  visit_index_dtype("embedding_forward", op.id_dtype, [&]<class I>() {
    const auto* id = static_cast<const I*>(ids);
    check_ids(op.count, op.vocab, id);
    const std::size_t row_bytes = op.dim * element_bytes(op.dtype);
    for_pieces(op.count, rows_of_tile(op.dim), [&](std::int64_t begin, std::int64_t rows) {
      for (std::int64_t i = begin; i < begin + rows; ++i) {
        std::byte* const to = static_cast<std::byte*>(out) + static_cast<std::size_t>(i) * row_bytes;
        const std::int64_t row = static_cast<std::int64_t>(id[i]) - op.first;
        if (row >= 0 && row < op.table_rows()) {
          std::memcpy(to, static_cast<const std::byte*>(table) + static_cast<std::size_t>(row) * row_bytes, row_bytes);
        } else {
          std::memset(to, 0, row_bytes);
        }
      }
    });
  });
}

void embedding_backward(const Embedding& op, const void* ids, const void* dout, void* dtable) {
  visit_index_dtype("embedding_backward", op.id_dtype, [&]<class I>() {
    const auto* id = static_cast<const I*>(ids);
    check_ids(op.count, op.vocab, id);
    const PositionsByRow positions(op, id);
    visit_float_dtype("embedding_backward", op.dtype, [&]<class T>() {
      auto* table = static_cast<T*>(dtable);
      simd::with_store(simd::streams(table, op.table_rows(), op.dim * element_bytes(op.dtype)), [&](auto put) {
        for_pieces(op.table_rows(), rows_of_tile(op.dim), [&](std::int64_t begin, std::int64_t rows) {
          for (std::int64_t v = begin; v < begin + rows; ++v) {
            const std::int64_t first = positions.first[static_cast<std::size_t>(v)];
            const std::int64_t last = positions.first[static_cast<std::size_t>(v) + 1];
            const auto sum = op.rounds_each_sum ? sum_rows<true, T, decltype(put)> : sum_rows<false, T, decltype(put)>;
            sum(positions.order.data() + first, last - first, op.dim, static_cast<const T*>(dout), table + v * op.dim,
                put);
          }
          put.finish();
        });
      });
    });
  });
}

}  // namespace loom::kernels
