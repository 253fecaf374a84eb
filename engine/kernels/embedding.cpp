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

// The positions of every id, in order: id v has order[first[v]] ... order[first[v + 1] - 1].
struct PositionsById {
  template <class I>
  PositionsById(std::int64_t count, std::int64_t vocab, const I* ids)
      : first(static_cast<std::size_t>(vocab + 1)), order(static_cast<std::size_t>(count)) {
    for (std::int64_t i = 0; i < count; ++i) ++first[static_cast<std::size_t>(ids[i]) + 1];
    for (std::size_t v = 1; v < first.size(); ++v) first[v] += first[v - 1];
    std::vector<std::int64_t> next(first.begin(), first.end() - 1);
    for (std::int64_t i = 0; i < count; ++i) {
      order[static_cast<std::size_t>(next[static_cast<std::size_t>(ids[i])]++)] = i;
    }
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
        std::memcpy(static_cast<std::byte*>(out) + static_cast<std::size_t>(i) * row_bytes,
                    static_cast<const std::byte*>(table) + static_cast<std::size_t>(id[i]) * row_bytes, row_bytes);
      }
    });
  });
}

void embedding_backward(const Embedding& op, const void* ids, const void* dout, void* dtable) {
  visit_index_dtype("embedding_backward", op.id_dtype, [&]<class I>() {
    const auto* id = static_cast<const I*>(ids);
    check_ids(op.count, op.vocab, id);
    const PositionsById positions(op.count, op.vocab, id);
    visit_float_dtype("embedding_backward", op.dtype, [&]<class T>() {
      auto* table = static_cast<T*>(dtable);
      simd::with_store(simd::streams(table, op.vocab, op.dim * element_bytes(op.dtype)), [&](auto put) {
        for_pieces(op.vocab, rows_of_tile(op.dim), [&](std::int64_t begin, std::int64_t rows) {
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
