#include "engine/kernels/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/scratch.h"
#include "engine/kernels/simd.h"

// Rows with many new tokens go through attention_forward(), a row at a time. For few tokens the keys are cut into runs:
// a task takes one token of one row and one run of keys, all heads, and leaves a maximum, a sum and a weighted sum of
// values a head; these are joined in the order of the runs.

namespace loom::kernels {
namespace {

constexpr std::int64_t kFewTokens = 4;
constexpr std::int64_t kRun = 128;      // keys of a task
constexpr std::int64_t kKeysAhead = 8;  // prefetched
constexpr int kPacks = 4;               // of a head, kept in registers

void check(const CachedAttention& op) {
  require(op.kv_heads > 0 && op.heads % op.kv_heads == 0 && op.head_dim > 0,
          "cached attention of {} query heads over {} key/value heads of {}", op.heads, op.kv_heads, op.head_dim);
  for (const CacheRow& row : op.rows) {
    require(row.first >= 0 && row.count >= 0 && row.first + row.count <= op.tokens && row.length >= 0 &&
                row.length + row.count <= op.capacity,
            "cached attention: {} tokens from {} of {} behind {} of {} places", row.count, row.first, op.tokens,
            row.length, op.capacity);
  }
}

template <class T>
class FewTokens {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  static constexpr std::int64_t kWidth = simd::lanes<V>;

 public:
  FewTokens(const CachedAttention& op, const T* q, const T* keys, const T* values, T* out)
      : op_(op),
        q_(q),
        keys_(keys),
        values_(values),
        out_(out),
        group_(op.heads / op.kv_heads),
        dim_(round_up(op.head_dim, kWidth)),
        room_(op.heads * (dim_ + 2)) {}

  void run() {
    for (std::int64_t b = 0; b < std::ssize(op_.rows); ++b) {
      const CacheRow& row = op_.rows[static_cast<std::size_t>(b)];
      if (row.count == 0 || row.count > kFewTokens) continue;
      for (std::int64_t i = 0; i < row.count; ++i) {
        const std::int64_t seen = row.length + i + 1;
        tokens_.push_back({b, row.first + i, seen, runs_});
        runs_ += ceil_div(seen, kRun);
      }
    }
    if (tokens_.empty()) return;
    static thread_local Scratch scratch;
    partial_ = scratch.get<S>(runs_ * room_);
    parallel_for(runs_, [this](std::int64_t run) { take(run); });
    parallel_for(std::ssize(tokens_), [this](std::int64_t i) { join(tokens_[static_cast<std::size_t>(i)]); });
  }

 private:
  struct Token {
    std::int64_t row, at, seen, first_run;
  };

  // The results of a run: [H] maxima, [H] sums, [H][dim_] weighted values.
  S* partial(std::int64_t run) const { return partial_ + run * room_; }

  void take(std::int64_t run) const {
    const auto behind = std::upper_bound(tokens_.begin(), tokens_.end(), run,
                                         [](std::int64_t r, const Token& token) { return r < token.first_run; });
    const Token& token = *(behind - 1);
    const std::int64_t first = (run - token.first_run) * kRun;
    const std::int64_t count = std::min(kRun, token.seen - first);
    const std::int64_t step = op_.kv_heads * op_.head_dim;
    const std::int64_t key = (token.row * op_.capacity + first) * step;
    const T* q = q_ + (token.row * op_.tokens + token.at) * op_.heads * op_.head_dim;
    S* to = partial(run);
    for (std::int64_t g = 0; g < op_.kv_heads; ++g) {
      const std::int64_t head = g * group_;
      attend(q + head * op_.head_dim, keys_ + key + g * op_.head_dim, values_ + key + g * op_.head_dim, count,
             to + head, to + op_.heads + head, to + 2 * op_.heads + head * dim_);
    }
  }

  // The heads of one group over `count` keys.
  void attend(const T* q, const T* keys, const T* values, std::int64_t count, S* maxima, S* sums, S* out) const {
    static thread_local Scratch scratch;
    const std::int64_t step = op_.kv_heads * op_.head_dim;
    S* scores = scratch.get<S>(group_ * (kRun + dim_));
    S* wide = scores + group_ * kRun;
    for (std::int64_t h = 0; h < group_; ++h) {
      simd::for_packs<V>(op_.head_dim, [&](std::int64_t d, auto part) {
        simd::store(wide + h * dim_ + d, simd::load<V>(q + h * op_.head_dim + d, part) * scale(), Full{});
      });
    }
    for (std::int64_t j = 0; j < count; ++j) {
      const T* key = keys + j * step;
      ask_ahead(key);
      for (std::int64_t h = 0; h < group_; ++h) scores[h * kRun + j] = dot(wide + h * dim_, key);
    }
    for (std::int64_t h = 0; h < group_; ++h) soften(scores + h * kRun, count, maxima[h], sums[h]);
    for (std::int64_t h = 0; h < group_; ++h) {
      std::int64_t d = 0;
      for (; d + kPacks * kWidth <= op_.head_dim; d += kPacks * kWidth) {
        weigh<kPacks>(scores + h * kRun, values + d, count, Full{}, out + h * dim_ + d);
      }
      simd::for_packs<V>(op_.head_dim - d, [&](std::int64_t rest, auto part) {
        weigh<1>(scores + h * kRun, values + d + rest, count, part, out + h * dim_ + d + rest);
      });
    }
  }

  using Full = simd::Full;
  V scale() const { return simd::splat<V>(op_.scale); }

  S dot(const S* q, const T* key) const {
    V total = {};
    simd::for_packs<V>(
        op_.head_dim, [&](std::int64_t d, auto part) { total += simd::load<V>(q + d) * simd::load<V>(key + d, part); });
    return sum(total);
  }
  static S sum(V value) {
    if constexpr (std::is_same_v<V, double>) {
      return value;
    } else {
      using F32x4 = float __attribute__((vector_size(16)));
      const auto half = std::bit_cast<std::array<simd::F32x8, 2>>(value);
      const auto quarter = std::bit_cast<std::array<F32x4, 2>>(half[0] + half[1]);
      const F32x4 four = quarter[0] + quarter[1];
      return (four[0] + four[2]) + (four[1] + four[3]);
    }
  }

  // Scores become exp(score - maximum).
  static void soften(S* scores, std::int64_t count, S& maximum, S& total) {
    maximum = *std::max_element(scores, scores + count);
    const V highest = simd::splat<V>(maximum);
    total = 0;
    simd::for_packs<V>(count, [&](std::int64_t j, auto part) {
      const V p = simd::keep(simd::exp(simd::load<V>(scores + j, part) - highest), part);
      simd::store(scores + j, p, part);
      total += sum(p);
    });
  }

  // The weighted sum of values, in their order.
  template <int kCount, class Part>
  void weigh(const S* weights, const T* values, std::int64_t count, Part part, S* out) const {
    const std::int64_t step = op_.kv_heads * op_.head_dim;
    V sums[kCount] = {};
    for (std::int64_t j = 0; j < count; ++j) {
#pragma GCC unroll 4
      for (int p = 0; p < kCount; ++p) {
        const T* const value = values + j * step + p * kWidth;
        simd::prefetch_ahead(value, ahead());
        sums[p] += weights[j] * simd::load<V>(value, part);
      }
    }
    for (int p = 0; p < kCount; ++p) simd::store(out + p * kWidth, sums[p], Full{});
  }

  // The lines of a later key: the lines of one head are not adjacent.
  void ask_ahead(const T* key) const {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t d = 0; d < op_.head_dim; d += kLine) simd::prefetch_ahead(key + d, ahead());
  }
  std::ptrdiff_t ahead() const {
    return kKeysAhead * op_.kv_heads * op_.head_dim * static_cast<std::ptrdiff_t>(sizeof(T));
  }

  void join(const Token& token) const {
    const std::int64_t runs = ceil_div(token.seen, kRun);
    T* out = out_ + (token.row * op_.tokens + token.at) * op_.heads * op_.head_dim;
    std::vector<S> factors(static_cast<std::size_t>(runs));
    for (std::int64_t h = 0; h < op_.heads; ++h) {
      S highest = partial(token.first_run)[h];
      for (std::int64_t r = 1; r < runs; ++r) highest = std::max(highest, partial(token.first_run + r)[h]);
      S total = 0;
      for (std::int64_t r = 0; r < runs; ++r) {
        const S* from = partial(token.first_run + r);
        factors[static_cast<std::size_t>(r)] = std::exp(from[h] - highest);
        total += factors[static_cast<std::size_t>(r)] * from[op_.heads + h];
      }
      simd::for_packs<V>(op_.head_dim, [&](std::int64_t d, auto part) {
        V value = {};
        for (std::int64_t r = 0; r < runs; ++r) {
          const S* from = partial(token.first_run + r) + 2 * op_.heads + h * dim_;
          value += factors[static_cast<std::size_t>(r)] * simd::load<V>(from + d);
        }
        simd::store(out + h * op_.head_dim + d, value / total, part);
      });
    }
  }

  const CachedAttention& op_;
  const T* const q_;
  const T* const keys_;
  const T* const values_;
  T* const out_;
  const std::int64_t group_;
  const std::int64_t dim_;   // of a head, in whole packs
  const std::int64_t room_;  // of a run
  std::vector<Token> tokens_;
  std::int64_t runs_ = 0;
  S* partial_ = nullptr;
};

// One row, all its new tokens.
void attend_row(const CachedAttention& op, std::int64_t b, const char* q, const char* keys, const char* values,
                char* out) {
  const CacheRow& row = op.rows[static_cast<std::size_t>(b)];
  Attention dense{.batch = 1,
                  .queries = row.count,
                  .keys = row.length + row.count,
                  .heads = op.heads,
                  .kv_heads = op.kv_heads,
                  .head_dim = op.head_dim,
                  .scale = op.scale,
                  .causal = true,
                  .start = row.length,
                  .dtype = op.dtype};
  static thread_local Scratch scratch;
  const std::int64_t element = element_bytes(op.dtype);
  const std::int64_t query = (b * op.tokens + row.first) * op.heads * op.head_dim * element;
  const std::int64_t key = b * op.capacity * op.kv_heads * op.head_dim * element;
  attention_forward(dense, q + query, keys + key, values + key, out + query, scratch.get<double>(op.heads * row.count));
}

}  // namespace

void append_to_cache(const CachedAttention& op, const void* k, void* keys) {
  check(op);
  const std::int64_t bytes = op.kv_heads * op.head_dim * element_bytes(op.dtype);
  const auto* from = static_cast<const char*>(k);
  auto* to = static_cast<char*>(keys);
  for (std::int64_t b = 0; b < std::ssize(op.rows); ++b) {
    const CacheRow& row = op.rows[static_cast<std::size_t>(b)];
    std::memcpy(to + (b * op.capacity + row.length) * bytes, from + (b * op.tokens + row.first) * bytes,
                static_cast<std::size_t>(row.count * bytes));
  }
}

void cached_attention(const CachedAttention& op, const void* q, const void* keys, const void* values, void* out) {
  check(op);
  const std::int64_t token_bytes = op.heads * op.head_dim * element_bytes(op.dtype);
  auto* to = static_cast<char*>(out);
  for (std::int64_t b = 0; b < std::ssize(op.rows); ++b) {
    const CacheRow& row = op.rows[static_cast<std::size_t>(b)];
    char* begin = to + b * op.tokens * token_bytes;
    std::memset(begin, 0, static_cast<std::size_t>(row.first * token_bytes));
    const std::int64_t end = row.first + row.count;
    std::memset(begin + end * token_bytes, 0, static_cast<std::size_t>((op.tokens - end) * token_bytes));
    if (row.count > kFewTokens) {
      attend_row(op, b, static_cast<const char*>(q), static_cast<const char*>(keys), static_cast<const char*>(values),
                 to);
    }
  }
  visit_float_dtype("cached attention", op.dtype, [&]<class T>() {
    FewTokens<T>(op, static_cast<const T*>(q), static_cast<const T*>(keys), static_cast<const T*>(values),
                 static_cast<T*>(out))
        .run();
  });
}

}  // namespace loom::kernels
