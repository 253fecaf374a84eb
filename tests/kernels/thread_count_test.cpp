// Promise: every fused kernel gives the same bits with 1, 2 and 3 compute threads.
#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <list>
#include <vector>

#include "engine/kernels/fused.h"
#include "engine/kernels/strided.h"
#include "engine/kernels/vocabulary.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr std::int64_t kRows = 700;  // with kDim more than 5 tiles of 65536 elements, and a rest
constexpr std::int64_t kDim = 531;
constexpr std::int64_t kElems = kRows * kDim;

bool has_threads() {
  try {
    ComputePool().resize(2);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

// What one thread count makes of the same inputs.
struct Outputs {
  explicit Outputs(DType dtype) : dtype_(dtype) {}
  Buffer& make(std::int64_t elems) { return made_.emplace_back(dtype_, static_cast<std::size_t>(elems)); }
  Buffer& make_stat(std::int64_t elems) {
    return made_.emplace_back(stat_dtype(dtype_), static_cast<std::size_t>(elems));
  }
  void number(double value) { numbers_.push_back(value); }
  bool operator==(const Outputs& other) const {
    const auto same = [](const Buffer& a, const Buffer& b) { return a.bytes() == b.bytes(); };
    return numbers_ == other.numbers_ &&
           std::equal(made_.begin(), made_.end(), other.made_.begin(), other.made_.end(), same);
  }

 private:
  DType dtype_;
  std::list<Buffer> made_;  // references stay valid
  Doubles numbers_;
};

void expect_same_bits(const std::function<void(DType, Outputs&)>& run) {
  if (!has_threads()) GTEST_SKIP() << "this build has serial loops";
  for (DType dtype : kFloats) {
    Outputs one(dtype);
    run(dtype, one);  // no rank current
    for (int threads : {1, 2, 3}) {
      Outputs many(dtype);
      with_threads(threads, [&] { run(dtype, many); });
      EXPECT_TRUE(one == many) << name(dtype) << " with " << threads << " threads";
    }
  }
}

TEST(ThreadCount, DoesNotChangeNorms) {
  expect_same_bits([](DType dtype, Outputs& out) {
    const Buffer x = normal_buffer(dtype, kElems, 1), dy = normal_buffer(dtype, kElems, 2);
    const Buffer weight = normal_buffer(dtype, kDim, 3);
    Buffer &y = out.make(kElems), &dx = out.make(kElems), &dw = out.make(kDim), &db = out.make(kDim);
    Buffer &mean = out.make_stat(kRows), &rstd = out.make_stat(kRows);
    rms_norm_forward({dtype, kRows, kDim, 1e-5}, x.data(), weight.data(), y.data(), rstd.data());
    rms_norm_backward({dtype, kRows, kDim}, x.data(), weight.data(), rstd.data(), dy.data(), dx.data(), dw.data());
    Buffer &y2 = out.make(kElems), &dx2 = out.make(kElems), &dw2 = out.make(kDim);
    layer_norm_forward({dtype, kRows, kDim, 1e-5}, x.data(), weight.data(), weight.data(), y2.data(), mean.data(),
                       rstd.data());
    layer_norm_backward({dtype, kRows, kDim}, x.data(), weight.data(), mean.data(), rstd.data(), dy.data(),
                        {dx2.data(), dw2.data(), db.data()});
  });
}

TEST(ThreadCount, DoesNotChangeElementwiseKernels) {
  expect_same_bits([](DType dtype, Outputs& out) {
    const Buffer x = normal_buffer(dtype, kElems, 1), up = normal_buffer(dtype, kElems, 2);
    Buffer &y = out.make(kElems), &dg = out.make(kElems), &du = out.make(kElems), &g = out.make(kElems);
    swiglu_forward(dtype, kElems, x.data(), up.data(), y.data());
    swiglu_backward(dtype, kElems, x.data(), up.data(), y.data(), dg.data(), du.data());
    gelu_forward(dtype, GeluForm::kTanh, kElems, x.data(), g.data());
    axpy(dtype, kElems, 0.3, x.data(), g.data());
    rope({dtype, dtype, false, 1, kElems / 6, 3, 2}, g.data(), x.data(), up.data(), g.data());
    Buffer &w = out.make_stat(kElems), &m = out.make_stat(kElems), &v = out.make_stat(kElems);
    adamw({.dtype = stat_dtype(dtype), .grad_dtype = dtype, .elems = kElems}, w.data(), x.data(), m.data(), v.data());
  });
}

TEST(ThreadCount, DoesNotChangeSums) {
  expect_same_bits([](DType dtype, Outputs& out) {
    const Buffer x = normal_buffer(dtype, kElems, 1);
    out.number(sum_of_squares(dtype, kElems, x.data()));
    column_sum(dtype, kRows, kDim, x.data(), out.make(kDim).data());
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < kRows; ++i) ids.push_back(i * i % 400);
    embedding_backward({dtype, kRows, 400, kDim, DType::kI32}, ids.data(), x.data(), out.make(400 * kDim).data());
    Buffer& lse = out.make_stat(kRows);
    const CrossEntropySum loss =
        cross_entropy_forward({dtype, kRows, kDim, DType::kI32, -100}, x.data(), ids.data(), lse.data());
    out.number(loss.loss);
    cross_entropy_backward({dtype, kRows, kDim, DType::kI32, -100}, x.data(), ids.data(), lse.data(), 0.1,
                           out.make(kElems).data());
  });
}

TEST(ThreadCount, DoesNotChangeDropout) {
  expect_same_bits([](DType dtype, Outputs& out) {
    const Buffer x = normal_buffer(dtype, kElems, 1);
    const Dropout op{dtype, kElems, kDim, 0.3, {{0, 7, 0}, {1, 8, 5}, {kRows - 3, 9, 0}}};
    dropout(op, x.data(), out.make(kElems).data());
  });
}

TEST(ThreadCount, DoesNotChangeCrossEntropyInParts) {
  expect_same_bits([](DType dtype, Outputs& out) {
    const Buffer x = normal_buffer(dtype, kElems, 1);
    std::vector<std::int32_t> ids;
    for (std::int32_t row = 0; row < kRows; ++row) ids.push_back(row % 9 == 0 ? -100 : row % 600);
    const VocabularyPart op{dtype, kRows, kDim, 100, 600, DType::kI32, -100};
    Buffer &largest = out.make_stat(kRows), &sum = out.make_stat(kRows), &logit = out.make_stat(kRows);
    vocabulary_statistics(op, x.data(), ids.data(), largest.data(), sum.data(), logit.data());
    out.number(vocabulary_loss(op, ids.data(), largest.data(), sum.data(), logit.data()).loss);
    vocabulary_gradient(op, x.data(), ids.data(), largest.data(), sum.data(), 0.1, out.make(kElems).data());
  });
}

}  // namespace
}  // namespace loom::kernels::testing
