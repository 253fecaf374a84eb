#include "engine/kernels/attention_parts.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

// Calls body(whole, part) for the positions of the part: the indices of a position in the two, heads not counted.
template <class Body>
void for_positions(const AttentionPart& part, Body&& body) {
  for_pieces(part.rows * part.count, rows_of_tile(part.heads * part.head_dim),
             [&](std::int64_t first, std::int64_t count) {
               for (std::int64_t at = first; at < first + count; ++at) {
                 body((part.row + at / part.count) * part.positions + part.begin + at % part.count, at);
               }
             });
}

// The index of (position, head) in a log-sum-exp [rows, heads, positions].
std::int64_t lse_index(std::int64_t position, std::int64_t positions, std::int64_t heads, std::int64_t head) {
  return (position / positions * heads + head) * positions + position % positions;
}

template <class T, class S>
void join(const AttentionPart& part, const T* part_out, const S* part_lse, S* out, S* lse) {
  for_positions(part, [&](std::int64_t whole, std::int64_t at) {
    for (std::int64_t head = 0; head < part.heads; ++head) {
      S& l = lse[lse_index(whole, part.positions, part.heads, head)];
      const S own = part_lse[lse_index(at, part.count, part.heads, head)];
      const S most = std::max(l, own);
      if (most == -std::numeric_limits<S>::infinity()) continue;
      const S joined = most + std::log(std::exp(l - most) + std::exp(own - most));
      const S keep = std::exp(l - joined), add = std::exp(own - joined);
      S* to = out + (whole * part.heads + head) * part.head_dim;
      const T* from = part_out + (at * part.heads + head) * part.head_dim;
      for (std::int64_t i = 0; i < part.head_dim; ++i) to[i] = keep * to[i] + add * static_cast<S>(from[i]);
      l = joined;
    }
  });
}

}  // namespace

void join_attention_part(const AttentionPart& part, const void* part_out, const void* part_log_sum_exp, void* out,
                         void* log_sum_exp) {
  visit_float_dtype("join_attention_part", part.dtype, [&]<class T>() {
    using S = simd::Scalar<T>;
    join(part, static_cast<const T*>(part_out), static_cast<const S*>(part_log_sum_exp), static_cast<S*>(out),
         static_cast<S*>(log_sum_exp));
  });
}

void copy_log_sum_exp(const AttentionPart& part, const void* log_sum_exp, void* part_log_sum_exp) {
  visit_float_dtype("copy_log_sum_exp", part.dtype, [&]<class T>() {
    using S = simd::Scalar<T>;
    for (std::int64_t line = 0; line < part.rows * part.heads; ++line) {
      const S* from = static_cast<const S*>(log_sum_exp) + (part.row * part.heads + line) * part.positions + part.begin;
      std::copy_n(from, part.count, static_cast<S*>(part_log_sum_exp) + line * part.count);
    }
  });
}

void add_attention_part(const AttentionPart& part, const void* part_gradient, void* gradient) {
  visit_float_dtype("add_attention_part", part.dtype, [&]<class T>() {
    using S = simd::Scalar<T>;
    const std::int64_t elems = part.heads * part.head_dim;
    for_positions(part, [&](std::int64_t whole, std::int64_t at) {
      S* to = static_cast<S*>(gradient) + whole * elems;
      const T* from = static_cast<const T*>(part_gradient) + at * elems;
      for (std::int64_t i = 0; i < elems; ++i) to[i] += static_cast<S>(from[i]);
    });
  });
}

}  // namespace loom::kernels
