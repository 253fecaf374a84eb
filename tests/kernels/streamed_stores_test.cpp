// Promise: an output that is large and aligned, and so passes by the caches, has the bits of one that is not aligned.
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <memory>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr std::int64_t kDim = 2048;
constexpr std::int64_t kRows = simd::kStreamBytes / kDim / 2;  // of bf16: just large enough
constexpr std::int64_t kElems = kRows * kDim;
constexpr std::int64_t kBytes = kElems * 2;

// kBytes that begin `offset` bytes behind a cache line.
class Output {
 public:
  explicit Output(std::int64_t offset)
      : offset_(offset), memory_(static_cast<std::byte*>(std::aligned_alloc(64, kBytes + 64)), std::free) {}
  std::byte* data() { return memory_.get() + offset_; }

 private:
  std::int64_t offset_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
};

// `run` writes a bf16 [kRows, kDim] to each of two outputs.
void expect_same_bits(const std::function<void(void*, void*)>& run) {
  Output streamed(0), streamed_beside(0), cached(32), cached_beside(32);
  ASSERT_TRUE(simd::streams(streamed.data(), kRows, kDim * 2));
  ASSERT_FALSE(simd::streams(cached.data(), kRows, kDim * 2));
  for (Output* output : {&streamed, &streamed_beside, &cached, &cached_beside}) std::memset(output->data(), 0, kBytes);
  run(streamed.data(), streamed_beside.data());
  run(cached.data(), cached_beside.data());
  EXPECT_EQ(std::memcmp(streamed.data(), cached.data(), kBytes), 0);
  EXPECT_EQ(std::memcmp(streamed_beside.data(), cached_beside.data(), kBytes), 0);
}

// Numbers with a prime period: fast to make.
Buffer numbers(std::int64_t elems) {
  Buffer buffer(DType::kBF16, static_cast<std::size_t>(elems));
  auto* values = static_cast<bf16*>(buffer.data());
  for (std::int64_t i = 0; i < elems; ++i) values[i] = bf16(static_cast<float>(i % 8191) / 2048 - 2);
  return buffer;
}

TEST(StreamedStores, HaveTheBitsOfCachedOnes) {
  const Buffer x = numbers(kElems);
  const Buffer weight = numbers(kDim);
  std::vector<float> statistics(kRows, 0.5f), mean(kRows);
  std::vector<bf16> dweight(kDim), dbias(kDim);
  expect_same_bits([&](void* y, void* beside) {
    rms_norm_forward({DType::kBF16, kRows, kDim, 1e-5}, x.data(), weight.data(), y, statistics.data());
    rms_norm_backward({DType::kBF16, kRows, kDim}, x.data(), weight.data(), statistics.data(), x.data(), beside,
                      dweight.data());
  });
  expect_same_bits([&](void* y, void* beside) {
    layer_norm_forward({DType::kBF16, kRows, kDim, 1e-5}, x.data(), weight.data(), weight.data(), y, mean.data(),
                       statistics.data());
    layer_norm_backward({DType::kBF16, kRows, kDim}, x.data(), weight.data(), mean.data(), statistics.data(), x.data(),
                        {beside, dweight.data(), dbias.data()});
  });
  expect_same_bits(
      [&](void* y, void* beside) { swiglu_backward(DType::kBF16, kElems, x.data(), x.data(), x.data(), y, beside); });
  expect_same_bits([&](void* y, void* beside) {
    gelu_forward(DType::kBF16, GeluForm::kTanh, kElems, x.data(), y);
    gelu_backward(DType::kBF16, GeluForm::kTanh, kElems, x.data(), x.data(), beside);
  });
}

TEST(StreamedStores, OfRowsHaveTheBitsOfCachedOnes) {
  const Buffer x = numbers(kElems);
  const Buffer table = numbers(kRows * 64);
  const std::vector<std::int32_t> ids(kRows, 3);
  std::vector<float> log_sum_exp(kRows, 9.0f);
  expect_same_bits([&](void* y, void* beside) {
    rope({DType::kBF16, DType::kBF16, false, 1, kRows, kDim / 64, 64}, x.data(), table.data(), table.data(), y);
    cross_entropy_backward({DType::kBF16, kRows, kDim, DType::kI32, -100}, x.data(), ids.data(), log_sum_exp.data(), 2,
                           beside);
  });
  expect_same_bits([&](void* y, void* beside) {
    embedding_backward({DType::kBF16, 100, kRows, kDim, DType::kI32}, ids.data(), x.data(), y);
    add(DType::kBF16, kElems, x.data(), x.data(), beside);
  });
}

}  // namespace
}  // namespace loom::kernels::testing
