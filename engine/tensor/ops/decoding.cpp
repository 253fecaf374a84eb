#include "engine/tensor/ops/decoding.h"

#include <cstring>
#include <utility>

#include "engine/core/rank_context.h"
#include "engine/core/shape_text.h"
#include "engine/kernels/cached_attention.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

struct Decoding {
  bool on = false;
};

bool& decoding() { return RankContext::current().slot<Decoding>().on; }

void check_rows(std::string_view op, const Tensor& x, const Tensor& rows) {
  check_model(x.shape().ndim() >= 3 && rows.dtype() == DType::kI64 && rows.shape() == Shape{x.shape()[0], 3},
              "{}: {} with rows {} {}; int64 [batch, 3] is needed", op, x.shape(), name(rows.dtype()), rows.shape());
}

void check_cache(const Tensor& q, const Tensor& k, const CachePart& cache) {
  const Shape& kept = cache.keys.shape();
  const bool shapes = kept.ndim() == 4 && kept == cache.values.shape() && kept[0] == q.shape()[0] &&
                      kept[2] == k.shape()[2] && kept[3] == k.shape()[3];
  check_model(shapes && cache.keys.dtype() == k.dtype() && cache.values.dtype() == k.dtype(),
              "attention: keys {} {} for a cache of {} {}; a cache is [batch, capacity, key/value heads, head dim], in "
              "the keys' dtype",
              name(k.dtype()), k.shape(), name(cache.keys.dtype()), kept);
}

void refuse_gradient(std::initializer_list<Tensor> inputs) {
  check_model(!autograd::will_record({inputs.begin(), inputs.size()}),
              "attention: with a cache of keys nothing is recorded for backward; call the model under NoGrad, or "
              "without past_key_values");
}

std::vector<kernels::CacheRow> rows_of(const Tensor& rows) {
  std::vector<kernels::CacheRow> result;
  const auto* numbers = rows.data<std::int64_t>();
  for (std::int64_t b = 0; b < rows.shape()[0]; ++b, numbers += 3) {
    result.push_back({.first = numbers[0], .count = numbers[1], .length = numbers[2]});
  }
  return result;
}

struct Pairs {
  double all = 0;         // of a new token and a key that it sees
  std::int64_t keys = 0;  // that are read
};
Pairs pairs_of(const std::vector<kernels::CacheRow>& rows) {
  Pairs pairs;
  for (const kernels::CacheRow& row : rows) {
    const auto count = static_cast<double>(row.count);
    pairs.all += count * static_cast<double>(row.length) + 0.5 * count * (count + 1);
    pairs.keys += row.length + row.count;
  }
  return pairs;
}

}  // namespace

DecodingScope::DecodingScope() : before_(std::exchange(decoding(), true)) {}
DecodingScope::~DecodingScope() { decoding() = before_; }
bool DecodingScope::is_current() {
  const RankContext* rank = RankContext::current_or_null();
  return rank != nullptr && decoding();
}

Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const CachePart& cache) {
  check_attention(q, k, v, false, {});
  check_rows("attention", q, cache.rows);
  check_cache(q, k, cache);
  refuse_gradient({q, k, v, cache.keys, cache.values});
  const Shape& s = q.shape();
  const std::vector<kernels::CacheRow> rows = rows_of(cache.rows);
  const kernels::CachedAttention op{.tokens = s[1],
                                    .capacity = cache.keys.shape()[1],
                                    .heads = s[2],
                                    .kv_heads = k.shape()[2],
                                    .head_dim = s[3],
                                    .scale = scale,
                                    .dtype = q.dtype(),
                                    .rows = rows};
  const Tensor out = Tensor::empty(s, q.dtype());
  const Pairs pairs = pairs_of(rows);
  Cost cost = pass_cost(4.0 * pairs.all * static_cast<double>(s[2] * s[3]), {q, k, v}, {out, k, v});
  cost.read_bytes += 2 * pairs.keys * op.kv_heads * op.head_dim * element_bytes(op.dtype);
  launch("cached_attention", cost, [&] {
    kernels::append_to_cache(op, k.raw(), cache.keys.raw());
    kernels::append_to_cache(op, v.raw(), cache.values.raw());
    kernels::cached_attention(op, q.raw(), cache.keys.raw(), cache.values.raw(), out.raw());
  });
  return out;
}

Tensor last_new_tokens(const Tensor& x, const Tensor& rows) {
  check_rows("last_new_tokens", x, rows);
  refuse_gradient({x});
  const std::int64_t batch = x.shape()[0], tokens = x.shape()[1];
  const Tensor last = Tensor::empty({batch, 1, x.shape()[2]}, x.dtype());
  launch("last_new_tokens", pass_cost(0, {last}, {last}), [&] {
    const std::int64_t bytes = x.shape()[2] * element_bytes(x.dtype());
    const std::vector<kernels::CacheRow> of = rows_of(rows);
    for (std::int64_t b = 0; b < batch; ++b) {
      const kernels::CacheRow& row = of[static_cast<std::size_t>(b)];
      const std::int64_t at = b * tokens + (row.count > 0 ? row.first + row.count - 1 : 0);
      std::memcpy(static_cast<char*>(last.raw()) + b * bytes, static_cast<const char*>(x.raw()) + at * bytes,
                  static_cast<std::size_t>(bytes));
    }
  });
  return last;
}

}  // namespace loom::ops
