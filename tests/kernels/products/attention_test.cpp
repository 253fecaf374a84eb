// Promise: attention and its gradients equal softmax(scale Q K^T) V written out in double, for every dtype, head dim
//          and grouping, for any number of queries at any position among the keys, with and without the causal mask;
//          parts of the keys join by their log-sum-exp; the bits do not depend on the number of threads, nor on the
//          samples or segments beside.
// World:   no ranks, or one rank with a pool of 1 to 3 threads; numbers in [-1, 1).

#include "engine/kernels/attention.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/kernels/attention_impl.h"
#include "engine/kernels/attention_simd.h"
#include "tests/support/typed_array.h"

namespace loom::kernels {
namespace {

using test::TypedArray;
using Doubles = std::vector<double>;

std::string describe(const Attention& op) {
  return fmt::format("B={} queries={} from {} keys={} H={} G={} D={} causal={} {}", op.batch, op.queries, op.start,
                     op.keys, op.heads, op.kv_heads, op.head_dim, op.causal, name(op.dtype));
}

Attention make(std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
               DType dtype, bool causal = true) {
  Attention op;
  op.batch = batch;
  op.queries = op.keys = seq;
  op.heads = heads;
  op.kv_heads = kv_heads;
  op.head_dim = head_dim;
  op.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  op.causal = causal;
  op.dtype = dtype;
  return op;
}

// The last `queries` of `keys` positions.
Attention last_of(std::int64_t queries, std::int64_t keys, std::int64_t kv_heads, DType dtype, bool causal) {
  Attention op = make(2, keys, 4, kv_heads, 20, dtype, causal);
  op.queries = queries;
  op.start = keys - queries;
  return op;
}

std::int64_t q_elems(const Attention& op) { return op.batch * op.queries * op.heads * op.head_dim; }
std::int64_t kv_elems(const Attention& op) { return op.batch * op.keys * op.kv_heads * op.head_dim; }
std::int64_t statistic_elems(const Attention& op) { return op.batch * op.heads * op.queries; }
DType statistic_type(const Attention& op) { return op.dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

struct Inputs {
  explicit Inputs(const Attention& op)
      : q(TypedArray::random(op.dtype, q_elems(op), 1)),
        k(TypedArray::random(op.dtype, kv_elems(op), 2)),
        v(TypedArray::random(op.dtype, kv_elems(op), 3)),
        dout(TypedArray::random(op.dtype, q_elems(op), 4)),
        dlog_sum_exp(TypedArray::filled(statistic_type(op), statistic_elems(op), 0)) {}
  // The loss depends on log_sum_exp too.
  Inputs& with_statistics(const Attention& op) {
    dlog_sum_exp = TypedArray::random(statistic_type(op), statistic_elems(op), 5);
    has_dlog_sum_exp = true;
    return *this;
  }
  TypedArray q, k, v, dout, dlog_sum_exp;  // zeros: without a gradient
  bool has_dlog_sum_exp = false;
};

struct Results {
  explicit Results(const Attention& op)
      : out(TypedArray::filled(op.dtype, q_elems(op), 77)),
        log_sum_exp(TypedArray::filled(statistic_type(op), statistic_elems(op), 77)),
        dq(TypedArray::filled(op.dtype, q_elems(op), 77)),
        dk(TypedArray::filled(op.dtype, kv_elems(op), 77)),
        dv(dk) {}
  TypedArray out, log_sum_exp, dq, dk, dv;
  bool operator==(const Results&) const = default;
};

AttentionBackward gradients_of(const Inputs& x, Results& r) {
  return {.q = x.q.data(),
          .k = x.k.data(),
          .v = x.v.data(),
          .out = r.out.data(),
          .log_sum_exp = r.log_sum_exp.data(),
          .dout = x.dout.data(),
          .dlog_sum_exp = x.has_dlog_sum_exp ? x.dlog_sum_exp.data() : nullptr,
          .dq = r.dq.data(),
          .dk = r.dk.data(),
          .dv = r.dv.data()};
}
void backward(const Attention& op, const Inputs& x, Results& r) { attention_backward(op, gradients_of(x, r)); }

Results compute(const Attention& op, const Inputs& x) {
  Results r(op);
  attention_forward(op, x.q.data(), x.k.data(), x.v.data(), r.out.data(), r.log_sum_exp.data());
  backward(op, x, r);
  return r;
}

Results compute_with(Bf16Products products, const Attention& op, const Inputs& x) {
  Results r(op);
  attn::forward(
      op, products,
      {.q = x.q.data(), .k = x.k.data(), .v = x.v.data(), .out = r.out.data(), .log_sum_exp = r.log_sum_exp.data()});
  attn::backward(op, products, gradients_of(x, r));
  return r;
}

struct Expected {
  Doubles out, log_sum_exp, dq, dk, dv;
};

struct DoubleInputs {
  explicit DoubleInputs(const Inputs& x)
      : q(x.q.doubles()),
        k(x.k.doubles()),
        v(x.v.doubles()),
        dout(x.dout.doubles()),
        dlog_sum_exp(x.dlog_sum_exp.doubles()) {}
  Doubles q, k, v, dout, dlog_sum_exp;
};

// One query row, written out. Sanitizers would watch most of their time here.
__attribute__((noinline, no_sanitize("address", "undefined"))) void add_row(const Attention& op, const DoubleInputs& x,
                                                                            std::int64_t b, std::int64_t h,
                                                                            std::int64_t row, Expected& e) {
  const std::int64_t g = h / (op.heads / op.kv_heads),
                     keys = op.causal ? std::min(op.start + row + 1, op.keys) : op.keys;
  const std::int64_t q_at = ((b * op.queries + row) * op.heads + h) * op.head_dim;
  const auto kv_at = [&](std::size_t s) {
    return ((b * op.keys + static_cast<std::int64_t>(s)) * op.kv_heads + g) * op.head_dim;
  };
  const double *q = x.q.data() + q_at, *dout = x.dout.data() + q_at;
  double *out = e.out.data() + q_at, *dq = e.dq.data() + q_at;
  const double scale = static_cast<double>(op.scale);
  const auto count = static_cast<std::size_t>(keys);
  Doubles probabilities(count), their_gradients(count);
  double *p = probabilities.data(), *dp = their_gradients.data();
  double highest = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const double *k = x.k.data() + kv_at(j), *v = x.v.data() + kv_at(j);
    double score = 0;
    for (std::int64_t d = 0; d < op.head_dim; ++d) {
      score += q[d] * k[d];
      dp[j] += dout[d] * v[d];
    }
    p[j] = score * scale;
    highest = std::max(highest, p[j]);
  }
  for (std::size_t j = 0; j < count; ++j) sum += p[j] = std::exp(p[j] - highest);
  const auto statistic = static_cast<std::size_t>((b * op.heads + h) * op.queries + row);
  e.log_sum_exp[statistic] = highest + std::log(sum);
  for (std::size_t j = 0; j < count; ++j) delta += (p[j] /= sum) * dp[j];
  delta -= x.dlog_sum_exp[statistic];
  for (std::size_t j = 0; j < count; ++j) {
    const double *k = x.k.data() + kv_at(j), *v = x.v.data() + kv_at(j);
    double *dk = e.dk.data() + kv_at(j), *dv = e.dv.data() + kv_at(j);
    const double ds = p[j] * (dp[j] - delta) * scale;
    for (std::int64_t d = 0; d < op.head_dim; ++d) {
      out[d] += p[j] * v[d];
      dv[d] += p[j] * dout[d];
      dq[d] += ds * k[d];
      dk[d] += ds * q[d];
    }
  }
}

Expected reference(const Attention& op, const Inputs& inputs) {
  const DoubleInputs x(inputs);
  const Doubles q(static_cast<std::size_t>(q_elems(op))), kv(static_cast<std::size_t>(kv_elems(op)));
  Expected e{q, Doubles(static_cast<std::size_t>(statistic_elems(op))), q, kv, kv};
  for (std::int64_t b = 0; b < op.batch; ++b) {
    for (std::int64_t h = 0; h < op.heads; ++h) {
      for (std::int64_t row = 0; row < op.queries; ++row) add_row(op, x, b, h, row, e);
    }
  }
  return e;
}

// Against the largest expected value, as rounding of probabilities and score gradients is relative to rows, not
// elements.
void expect_near(const char* what, const Attention& op, const TypedArray& actual, const Doubles& expected,
                 double relative) {
  double largest = 0.1, worst = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  const Doubles values = actual.doubles();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]) / largest;
    if (!(error <= worst)) worst = error;  // NaN too
  }
  EXPECT_LE(worst, relative) << what << " of " << describe(op);
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-6;  // probabilities and score gradients are rounded to bf16 (2^-9), and the output
    case DType::kF16:
      return 0x1p-10;
    case DType::kF64:
      return 1e-13;
    default:
      return 5e-6;
  }
}

void expect_near(const Attention& op, const Results& r, const Expected& e) {
  const double relative = tolerance(op.dtype);
  expect_near("out", op, r.out, e.out, relative);
  expect_near("log_sum_exp", op, r.log_sum_exp, e.log_sum_exp, op.dtype == DType::kF64 ? 1e-13 : 5e-6);
  expect_near("dq", op, r.dq, e.dq, relative);
  expect_near("dk", op, r.dk, e.dk, relative);
  expect_near("dv", op, r.dv, e.dv, relative);
}

// bf16 with either of its products.
void expect_equal_to_double(const Attention& op, const Inputs& x) {
  const Expected e = reference(op, x);
  if (op.dtype != DType::kBF16) return expect_near(op, compute(op, x), e);
  for (const Bf16Products products : {Bf16Products::kPairs, Bf16Products::kWidened}) {
    SCOPED_TRACE(products == Bf16Products::kPairs ? "pairs" : "widened");
    expect_near(op, compute_with(products, op, x), e);
  }
}

void expect_equal_to_double(const Attention& op) { expect_equal_to_double(op, Inputs(op)); }

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

TEST(Attention, EqualsTheNaiveFormAtAnyHeadDim) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t dim : {1, 7, 16, 24, 32, 33, 48, 64, 80, 96, 128, 144, 160, 256}) {
      expect_equal_to_double(make(1, 70, 1, 1, dim, dtype));
    }
  }
}

TEST(Attention, EqualsTheNaiveFormAtAnySequenceLength) {
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t seq : {1, 2, 5, 16, 47, 48, 49, 64, 95, 97, 150}) {
        expect_equal_to_double(make(1, seq, 2, 2, 20, dtype, causal));
      }
    }
  }
}

// Keys are walked in chunks of 384, and tiles of bf16 in pairs: lengths on both sides of their ends.
TEST(Attention, EqualsTheNaiveFormBeyondAChunkOfKeys) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t seq : {384, 385, 433}) {
      expect_equal_to_double(make(1, seq, 2, 1, 16, dtype));
    }
    for (const std::int64_t dim : {64, 96, 128}) {
      expect_equal_to_double(make(1, 401, 2, 1, dim, dtype));
      expect_equal_to_double(make(1, 401, 2, 1, dim, dtype, false));
    }
    Attention op = make(1, 500, 2, 1, 96, dtype);
    op.queries = 111;
    op.start = 377;  // queries before and behind a chunk's end, some behind all but the last keys
    expect_equal_to_double(op, Inputs(op).with_statistics(op));
  }
}

TEST(Attention, SharesKeyValueHeadsAmongQueryHeads) {
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      expect_equal_to_double(make(2, 61, 6, 2, 24, dtype, causal));
      expect_equal_to_double(make(2, 61, 4, 1, 24, dtype, causal));
    }
  }
}

TEST(Attention, TakesAnyNumberOfQueriesAtTheEndOfTheKeys) {
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t kv_heads : {1, 2, 4}) {
        for (const std::int64_t queries : {1, 3, 17, 60, 130}) {
          expect_equal_to_double(last_of(queries, 130, kv_heads, dtype, causal));
        }
      }
    }
  }
}

// Tiles hold 48: queries that begin and end inside tiles, keys that no query sees, queries behind all keys, more
// queries than keys.
TEST(Attention, TakesQueriesAtAnyPosition) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t start : {0, 1, 5, 40, 47, 48, 49, 95, 100, 131, 500}) {
      for (const std::int64_t queries : {1, 50, 200}) {
        Attention op = last_of(queries, 130, 2, dtype, true);
        op.start = start;
        expect_equal_to_double(op);
      }
    }
  }
}

TEST(Attention, TheGradientOfItsLogSumExpFlowsToQueriesAndKeys) {
  for (const DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      const Attention op = last_of(60, 130, 2, dtype, causal);
      expect_equal_to_double(op, Inputs(op).with_statistics(op));
    }
  }
}

// The cache holds all keys; row i asks for position i alone. The same sums in another blocking: 1e-6.
TEST(Attention, OneQueryAtATimeEqualsAllAtOnce) {
  const Attention all = make(1, 101, 4, 2, 24, DType::kF32);
  const Inputs x(all);
  const Results whole = compute(all, x);
  Attention one = all;
  one.queries = 1;
  const std::int64_t row = all.heads * all.head_dim;
  std::vector<float> out(static_cast<std::size_t>(row)), log_sum_exp(static_cast<std::size_t>(all.heads));
  for (one.start = 0; one.start < all.queries; ++one.start) {
    for (const std::int64_t keys : {one.start + 1, all.keys}) {  // what the cache holds behind the query is not seen
      one.keys = keys;
      attention_forward(one, static_cast<const float*>(x.q.data()) + one.start * row, x.k.data(), x.v.data(),
                        out.data(), log_sum_exp.data());
      for (std::int64_t i = 0; i < row; ++i) {
        ASSERT_NEAR(static_cast<double>(out[static_cast<std::size_t>(i)]), whole.out.get(one.start * row + i), 1e-6)
            << one.start;
      }
      for (std::int64_t h = 0; h < all.heads; ++h) {
        ASSERT_NEAR(static_cast<double>(log_sum_exp[static_cast<std::size_t>(h)]),
                    whole.log_sum_exp.get(h * all.queries + one.start), 1e-6);
      }
    }
  }
}

// The queries from kCut on see the first part of the keys whole and the second part causally: a ring of two ranks.
TEST(Attention, PartsOfTheKeysJoinByTheirLogSumExp) {
  constexpr std::int64_t kKeys = 100, kCut = 37;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Attention all = make(1, kKeys, 4, 2, 24, dtype);
    all.queries = kKeys - kCut;  // the positions from kCut on: all see the first part whole
    all.start = kCut;
    const Inputs x(all);
    const Results whole = compute(all, x);
    Attention parts[] = {all, all};
    parts[0].keys = kCut;
    parts[0].causal = false;
    parts[1].keys = kKeys - kCut;
    parts[1].start = 0;
    std::vector<Results> results;
    const std::int64_t kv_row = all.kv_heads * all.head_dim;
    Doubles dq(static_cast<std::size_t>(q_elems(all)));
    for (std::int64_t part = 0; part < 2; ++part) {
      const Attention& op = parts[part];
      Results r(op);
      attention_forward(op, x.q.data(), x.k.at(part * kCut * kv_row), x.v.at(part * kCut * kv_row), r.out.data(),
                        r.log_sum_exp.data());
      attention_backward(op, {.q = x.q.data(),
                              .k = x.k.at(part * kCut * kv_row),
                              .v = x.v.at(part * kCut * kv_row),
                              .out = whole.out.data(),
                              .log_sum_exp = whole.log_sum_exp.data(),
                              .dout = x.dout.data(),
                              .dq = r.dq.data(),
                              .dk = r.dk.data(),
                              .dv = r.dv.data()});
      for (std::int64_t i = 0; i < q_elems(op); ++i) dq[static_cast<std::size_t>(i)] += r.dq.get(i);
      for (std::int64_t i = 0; i < kv_elems(op); ++i) {
        ASSERT_NEAR(r.dk.get(i), whole.dk.get(part * kCut * kv_row + i), 1e-5);
        ASSERT_NEAR(r.dv.get(i), whole.dv.get(part * kCut * kv_row + i), 1e-5);
      }
      results.push_back(r);
    }
    for (std::int64_t i = 0; i < q_elems(all); ++i) {
      const std::int64_t head = i / all.head_dim % all.heads, row = i / (all.heads * all.head_dim);
      const std::int64_t statistic = head * all.queries + row;
      const double first = results[0].log_sum_exp.get(statistic), second = results[1].log_sum_exp.get(statistic);
      const double joined = std::log(std::exp(first) + std::exp(second));
      ASSERT_NEAR(joined, whole.log_sum_exp.get(statistic), 1e-6);
      ASSERT_NEAR(std::exp(first - joined) * results[0].out.get(i) + std::exp(second - joined) * results[1].out.get(i),
                  whole.out.get(i), 1e-6);
      ASSERT_NEAR(dq[static_cast<std::size_t>(i)], whole.dq.get(i), 1e-5);
    }
  }
}

TEST(AttentionVectors, LogarithmsAreRightToTwoUnits) {
  constexpr int kLanes = attn::kLanes<float>;
  alignas(64) float x[kLanes];
  for (float from = std::numeric_limits<float>::min(); from < 1e38f; from *= 1.37f) {
    for (int i = 0; i < kLanes; ++i) x[i] = from * (1 + 0.37f * static_cast<float>(i) / kLanes);
    const attn::Vector<float> y = attn::log(attn::load(x));
    for (int i = 0; i < kLanes; ++i) {
      const double expected = std::log(static_cast<double>(x[i]));
      EXPECT_NEAR(y[i], expected, 2 * 0x1p-24 * std::max(std::abs(expected), 0x1p-3)) << x[i];
    }
  }
  x[0] = 1, x[1] = HUGE_VALF, x[2] = std::nanf("");
  const attn::Vector<float> y = attn::log(attn::load(x));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], HUGE_VALF);
  EXPECT_TRUE(std::isnan(y[2]));
}

// Scores of 900 would overflow exp() without the running maximum.
TEST(Attention, StaysFiniteAndRightForLargeScores) {
  for (const float scale : {100.0f, -100.0f}) {
    Attention op = make(1, 100, 1, 1, 16, DType::kF64);
    op.scale = scale;
    expect_equal_to_double(op);
    op.dtype = DType::kF32;
    const Results r = compute(op, Inputs(op));
    for (std::int64_t i = 0; i < r.out.count(); ++i) {
      ASSERT_LE(std::abs(r.out.get(i)), 1.0) << i;
      ASSERT_TRUE(std::isfinite(r.dq.get(i)) && std::isfinite(r.dk.get(i)) && std::isfinite(r.dv.get(i))) << i;
    }
  }
}

TEST(Attention, OneNaNSpoilsOnlyTheRowsThatSeeIt) {
  for (const DType dtype : kTypes) {
    const Attention op = make(1, 120, 1, 1, 16, dtype);
    Inputs x(op);
    x.k.set(50 * 16 + 3, std::nan(""));
    const Results r = compute(op, x);
    for (std::int64_t row = 0; row < op.queries; ++row) {
      ASSERT_EQ(std::isnan(r.out.get(row * 16)), row >= 50) << describe(op) << " row " << row;
    }
  }
}

double loss(const Attention& op, const Inputs& x) {
  Results r(op);
  attention_forward(op, x.q.data(), x.k.data(), x.v.data(), r.out.data(), r.log_sum_exp.data());
  double sum = 0;
  for (std::int64_t i = 0; i < q_elems(op); ++i) sum += r.out.get(i) * x.dout.get(i);
  for (std::int64_t i = 0; i < statistic_elems(op); ++i) sum += r.log_sum_exp.get(i) * x.dlog_sum_exp.get(i);
  return sum;
}

// The error of a central difference of step h is h^2 f''' / 6 + eps f / h: below 1e-8 at h = 1e-5 for values of size 1.
TEST(Attention, GradientsEqualFiniteDifferencesInDouble) {
  for (const bool causal : {true, false}) {
    Attention op = make(1, 51, 2, 1, 6, DType::kF64, causal);
    op.queries = 30;
    op.start = 11;
    Inputs x = Inputs(op).with_statistics(op);
    const Results r = compute(op, x);
    const auto check = [&](TypedArray& input, const TypedArray& gradient, const char* what) {
      for (std::int64_t i = 0; i < input.count(); i += 13) {
        const double value = input.get(i), step = 1e-5;
        input.set(i, value + step);
        const double above = loss(op, x);
        input.set(i, value - step);
        const double below = loss(op, x);
        input.set(i, value);
        EXPECT_NEAR(gradient.get(i), (above - below) / (2 * step), 1e-7) << what << " " << i;
      }
    };
    check(x.q, r.dq, "dq");
    check(x.k, r.dk, "dk");
    check(x.v, r.dv, "dv");
  }
}

TEST(Attention, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const DType dtype : kTypes) {
    // Of few key/value heads, and of so many that each is one task.
    for (const auto& [batch, kv_heads] : {std::pair{2, 2}, std::pair{2, 6}, std::pair{3, 6}, std::pair{9, 2}}) {
      Attention op = make(batch, 130, 6, kv_heads, 32, dtype);
      op.queries = 70;
      op.start = 51;
      const Inputs x(op);
      const Results alone = compute(op, x);
      for (const int threads : test::thread_counts()) {
        test::WithThreads pool(threads);
        EXPECT_TRUE(compute(op, x) == alone) << describe(op) << " threads=" << threads;
      }
    }
  }
}

// Rows first ... first + rows - 1 of an array of rows of `row_elems`.
TypedArray rows_of(DType dtype, const TypedArray& all, std::int64_t first, std::int64_t rows, std::int64_t row_elems) {
  TypedArray part = TypedArray::filled(dtype, rows * row_elems, 0);
  for (std::int64_t i = 0; i < part.count(); ++i) part.set(i, all.get(first * row_elems + i));
  return part;
}

Inputs rows_of(const Attention& op, const Inputs& x, std::int64_t first, std::int64_t rows) {
  Attention part = op;
  part.batch = 1;
  part.queries = part.keys = rows;
  Inputs cut(part);
  cut.q = rows_of(op.dtype, x.q, first, rows, op.heads * op.head_dim);
  cut.k = rows_of(op.dtype, x.k, first, rows, op.kv_heads * op.head_dim);
  cut.v = rows_of(op.dtype, x.v, first, rows, op.kv_heads * op.head_dim);
  cut.dout = rows_of(op.dtype, x.dout, first, rows, op.heads * op.head_dim);
  return cut;
}

// Positions first ... first + rows - 1 of the rows of a batch have the bits of a batch of their own.
void expect_bits_of_its_own(const Attention& op, const Inputs& x, const Results& all, std::int64_t first,
                            std::int64_t rows) {
  Attention own = op;
  own.batch = 1;
  own.queries = own.keys = rows;
  own.segment_ends = nullptr;
  const Results r = compute(own, rows_of(op, x, first, rows));
  const std::int64_t q_row = op.heads * op.head_dim, kv_row = op.kv_heads * op.head_dim;
  EXPECT_TRUE(rows_of(op.dtype, all.out, first, rows, q_row) == r.out) << describe(op) << " out from " << first;
  EXPECT_TRUE(rows_of(op.dtype, all.dq, first, rows, q_row) == r.dq) << describe(op) << " dq from " << first;
  EXPECT_TRUE(rows_of(op.dtype, all.dk, first, rows, kv_row) == r.dk) << describe(op) << " dk from " << first;
  EXPECT_TRUE(rows_of(op.dtype, all.dv, first, rows, kv_row) == r.dv) << describe(op) << " dv from " << first;
  for (std::int64_t h = 0; h < op.heads; ++h) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = (first / op.queries * op.heads + h) * op.queries + first % op.queries + row;
      ASSERT_EQ(all.log_sum_exp.get(at), r.log_sum_exp.get(h * rows + row)) << describe(op) << " row " << first + row;
    }
  }
}

// 16 key/value heads and more are shared out whole, fewer by blocks of queries.
TEST(Attention, ASampleHasTheSameBitsAloneAndAmongMany) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t kv_heads : {1, 2, 6}) {
      for (const std::int64_t dim : {20, 64, 96}) {
        const Attention op = make(17, 101, 6, kv_heads, dim, dtype);
        const Inputs x(op);
        const Results all = compute(op, x);
        for (const std::int64_t sample : {0, 16}) expect_bits_of_its_own(op, x, all, sample * 101, 101);
      }
    }
  }
}

TEST(Attention, ASegmentHasTheBitsOfABatchOfItsOwnOnAnyNumberOfThreads) {
  using Ends = std::vector<std::int64_t>;
  // Rows of 450: many short segments, and one that is nearly all there is.
  for (const Ends& ends : {Ends{1, 49, 200, 201, 297, 450, 500, 548, 700, 900}, Ends{440, 450, 900}}) {
    for (const DType dtype : kTypes) {
      for (const std::int64_t kv_heads : {1, 4}) {
        Attention op = make(2, 450, 4, kv_heads, 96, dtype);
        op.segment_ends = std::make_shared<const Ends>(ends);
        const Inputs x(op);
        const Results all = compute(op, x);
        std::int64_t begin = 0;
        for (const std::int64_t end : ends) {
          expect_bits_of_its_own(op, x, all, begin, end - begin);
          begin = end;
        }
        for (const int threads : test::thread_counts()) {
          test::WithThreads pool(threads);
          EXPECT_TRUE(compute(op, x) == all) << describe(op) << " threads=" << threads;
        }
      }
    }
  }
}

TEST(Attention, RefusesSegmentsThatCrossARow) {
  Attention op = make(2, 10, 1, 1, 4, DType::kF32);
  op.segment_ends = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{4, 12, 20});
  Results r(op);
  const Inputs x(op);
  try {
    attention_forward(op, x.q.data(), x.k.data(), x.v.data(), r.out.data(), r.log_sum_exp.data());
    FAIL() << "no error";
  } catch (const InvariantError& error) {
    EXPECT_STREQ(error.what(), "internal: attention of a segment from 4 to 12 of rows of 10");
  }
}

TEST(Attention, TakesEmptySizes) {
  for (const DType dtype : kTypes) {
    for (const Attention& op : {make(0, 3, 1, 1, 4, dtype), make(1, 0, 1, 1, 4, dtype), make(1, 3, 0, 0, 4, dtype)}) {
      EXPECT_EQ(compute(op, Inputs(op)).out.count(), 0) << describe(op);
    }
  }
}

TEST(Attention, RefusesQueriesWithoutAKey) {
  Attention op = make(1, 4, 2, 2, 8, DType::kF32);
  op.keys = 0;
  EXPECT_THROW(attention_forward(op, nullptr, nullptr, nullptr, nullptr, nullptr), InvariantError);
}

TEST(Attention, RefusesHeadsThatDoNotShareEvenly) {
  try {
    attention_forward(make(1, 4, 6, 4, 8, DType::kF32), nullptr, nullptr, nullptr, nullptr, nullptr);
    FAIL() << "no error";
  } catch (const InvariantError& error) {
    EXPECT_STREQ(error.what(),
                 "internal: attention with 6 query heads needs a divisor of that as key/value heads, got 4");
  }
}

}  // namespace
}  // namespace loom::kernels
