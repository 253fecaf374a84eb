// Attention as a share of the multiply-add peak measured beside it. FLOPs counted are those a causal mask leaves:
// forward 2 products of S * S * D / 2 multiply-adds a head, backward 5; of packed rows, S is each segment's.

#include <benchmark/benchmark.h>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "bench/timing.h"
#include "engine/core/error.h"
#include "engine/kernels/attention.h"

namespace loom::bench {
namespace {

using kernels::Attention;

struct Tensors {
  explicit Tensors(const Attention& op)
      : q(random_array(op.dtype, op.batch * op.queries * op.heads * op.head_dim, 1)),
        k(random_array(op.dtype, op.batch * op.keys * op.kv_heads * op.head_dim, 2)),
        v(random_array(op.dtype, op.batch * op.keys * op.kv_heads * op.head_dim, 3)),
        dout(random_array(op.dtype, op.batch * op.queries * op.heads * op.head_dim, 4)),
        out(q.size()),
        dq(q.size()),
        dk(k.size()),
        dv(k.size()),
        log_sum_exp(static_cast<std::size_t>(op.batch * op.heads * op.queries)) {}
  Bytes q, k, v, dout, out, dq, dk, dv;
  std::vector<float> log_sum_exp;
};

void forward(const Attention& op, Tensors& t) {
  attention_forward(op, t.q.data(), t.k.data(), t.v.data(), t.out.data(), t.log_sum_exp.data());
}
void backward(const Attention& op, Tensors& t) {
  attention_backward(op, {.q = t.q.data(),
                          .k = t.k.data(),
                          .v = t.v.data(),
                          .out = t.out.data(),
                          .log_sum_exp = t.log_sum_exp.data(),
                          .dout = t.dout.data(),
                          .dq = t.dq.data(),
                          .dk = t.dk.data(),
                          .dv = t.dv.data()});
}

// The positions that the last one of a row sees, itself included.
std::int64_t seen_by_last(const Attention& op) {
  if (!op.segment_ends) return op.keys;
  const std::vector<std::int64_t>& ends = *op.segment_ends;
  return ends.size() == 1 ? ends.back() : ends.back() - ends[ends.size() - 2];
}

// The last row of the first head of the last sample, written out in double; and sum(dq * q) = sum(dk * k), which holds
// because both are the derivative of the loss by a common factor of all scores.
void check(const Attention& op, Tensors& t) {
  forward(op, t);
  backward(op, t);
  const std::int64_t row = (op.batch - 1) * op.queries + op.queries - 1;
  std::vector<double> p(static_cast<std::size_t>(op.keys)), out(static_cast<std::size_t>(op.head_dim));
  double sum = 0;
  const std::int64_t first = op.keys - seen_by_last(op);
  for (std::int64_t j = first; j < op.keys; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < op.head_dim; ++d) {
      score += at(t.q, op.dtype, row * op.heads * op.head_dim + d) *
               at(t.k, op.dtype, ((op.batch - 1) * op.keys + j) * op.kv_heads * op.head_dim + d);
    }
    sum += p[static_cast<std::size_t>(j)] = std::exp(score * static_cast<double>(op.scale));
  }
  const double allowed = op.dtype == DType::kBF16 ? 1e-2 : 1e-5;
  for (std::int64_t d = 0; d < op.head_dim; ++d) {
    double expected = 0;
    for (std::int64_t j = first; j < op.keys; ++j) {
      expected += p[static_cast<std::size_t>(j)] / sum *
                  at(t.v, op.dtype, ((op.batch - 1) * op.keys + j) * op.kv_heads * op.head_dim + d);
    }
    const double actual = at(t.out, op.dtype, row * op.heads * op.head_dim + d);
    require(std::abs(actual - expected) < allowed, "attention gives {}, expected {}", actual, expected);
  }
  double by_q = 0, by_k = 0, size = 0;
  for (std::int64_t i = 0; i < op.batch * op.queries * op.heads * op.head_dim; ++i) {
    const double term = at(t.q, op.dtype, i) * at(t.dq, op.dtype, i);
    by_q += term;
    size += std::abs(term);
  }
  for (std::int64_t i = 0; i < op.batch * op.keys * op.kv_heads * op.head_dim; ++i) {
    by_k += at(t.k, op.dtype, i) * at(t.dk, op.dtype, i);
  }
  require(std::abs(by_q - by_k) < allowed * size, "sum(dq q) is {}, sum(dk k) is {}", by_q, by_k);
}

// Twice the pairs of a query and a key that it sees.
std::int64_t pairs(const Attention& op) {
  if (!op.segment_ends) return op.batch * op.queries * op.keys;
  std::int64_t sum = 0, begin = 0;
  for (const std::int64_t end : *op.segment_ends) {
    sum += (end - begin) * (end - begin);
    begin = end;
  }
  return sum;
}

void measure(benchmark::State& state, const Attention& op, bool is_forward, int threads) {
  Tensors tensors(op);
  const ThreadsScope scope(threads);
  check(op, tensors);
  const double products = is_forward ? 2 : 5;
  const double flops = products * static_cast<double>(pairs(op) * op.heads * op.head_dim);
  PeakShare share(op.dtype, threads);
  for (auto _ : state) share.time([&] { is_forward ? forward(op, tensors) : backward(op, tensors); });
  state.counters["%peak"] = share.percent(flops);
  state.counters["GFLOP/s"] = share.flops_per_second(flops) / 1e9;
}

struct Size {
  std::int64_t batch, heads, kv_heads, seq, head_dim;
  std::int64_t segment = 0;  // rows are packed of documents of so many positions
};

kernels::SegmentEnds segment_ends(const Size& size) {
  if (size.segment == 0) return nullptr;
  std::vector<std::int64_t> ends;
  for (std::int64_t row = 0; row < size.batch; ++row) {
    for (std::int64_t end = size.segment; end < size.seq; end += size.segment) ends.push_back(row * size.seq + end);
    ends.push_back((row + 1) * size.seq);
  }
  return std::make_shared<const std::vector<std::int64_t>>(std::move(ends));
}

void add(const Size& size, DType dtype, bool is_forward, int threads) {
  Attention op;
  op.batch = size.batch;
  op.heads = size.heads;
  op.kv_heads = size.kv_heads;
  op.queries = op.keys = size.seq;
  op.head_dim = size.head_dim;
  op.scale = 1.0f / std::sqrt(static_cast<float>(size.head_dim));
  op.dtype = dtype;
  op.segment_ends = segment_ends(size);
  const std::string packed = size.segment == 0 ? "" : fmt::format("_packed{}", size.segment);
  const std::string label =
      fmt::format("attention/{}/{}/B{}_H{}_G{}_S{}_D{}{}/threads{}", is_forward ? "forward" : "backward", name(dtype),
                  size.batch, size.heads, size.kv_heads, size.seq, size.head_dim, packed, threads);
  benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
    measure(state, op, is_forward, threads);
  })->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  using namespace loom::bench;
  for (const int threads : thread_counts()) {
    for (const loom::DType dtype : {loom::DType::kF32, loom::DType::kBF16}) {
      for (const Size& size :
           {Size{4, 8, 8, 512, 64}, Size{4, 8, 4, 512, 64}, Size{1, 14, 2, 512, 64}, Size{1, 14, 2, 2048, 64},
            Size{1, 12, 4, 1024, 96}, Size{1, 16, 8, 1024, 128}, Size{2, 12, 4, 2048, 64, 600}}) {
        for (const bool is_forward : {true, false}) add(size, dtype, is_forward, threads);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
