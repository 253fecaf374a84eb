// Promise: the bits of a training step depend neither on the executor nor on the number of compute threads.
// World:   one rank, two layers, batches copied over the h2d stream, three steps of AdamW.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>

#include "engine/nn/init.h"
#include "engine/nn/optim/adamw.h"
#include "tests/nn/toy_modules.h"

namespace loom {
namespace {

// 140 rows of 1031 logits are three tiles of the loss, and nine of the norms.
constexpr std::int64_t kVocab = 1031, kBatch = 2, kSeq = 70;

std::vector<std::int64_t> batch(std::uint64_t step) {
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i < kBatch * kSeq; ++i)
    ids.push_back(static_cast<std::int64_t>(philox(step, i)[0] % kVocab));
  return ids;
}

// `host` on the device once the h2d stream got there; the compute stream waits for it.
Tensor copied(device::Device& device, const Tensor& host) {
  device::Stream& h2d = device.stream(device::StreamId::kH2D);
  const Tensor copy = Tensor::empty(host.shape(), host.dtype());
  const auto bytes = static_cast<std::size_t>(host.nbytes());
  h2d.submit({"copy",
              "ids",
              {},
              [from = host.raw(), to = copy.raw(), bytes, a = host.storage()->keep_alive(),
               b = copy.storage()->keep_alive()] { std::memcpy(to, from, bytes); }});
  device.stream(device::StreamId::kCompute).wait(h2d.record());
  return copy;
}

struct Result {
  std::vector<double> losses;
  std::vector<std::vector<float>> parameters;
  bool operator==(const Result&) const = default;
};

Result train(device::ExecutorKind executor, int compute_threads, const nn::KernelOptions& kernels) {
  test::OneRank rank({.executor = executor}, compute_threads);
  rank.context().slot<nn::KernelOptions>() = kernels;
  test::ToyModel model(kVocab, 32, 4, 2);
  nn::materialize(model);
  nn::init_weights(model, 17);
  nn::AdamW optimizer(model.parameters(), {.lr = 0.01});
  Result result;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Tensor host = Tensor::host({kBatch, kSeq}, DType::kI64);
    host.copy_from(Tensor::from(batch(step), {kBatch, kSeq}));
    const Tensor ids = copied(rank.device(), host);
    const Tensor loss = model(ids, ids);
    autograd::backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(loss.item());
  }
  for (const Tensor& parameter : model.parameters()) result.parameters.push_back(parameter.to_vector<float>());
  return result;
}

class StepBits : public ::testing::TestWithParam<bool> {
 protected:
  const nn::KernelOptions kernels = GetParam() ? nn::KernelOptions::fast() : nn::KernelOptions::pytorch();
};
INSTANTIATE_TEST_SUITE_P(Grain, StepBits, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Fused" : "Composed"; });

TEST_P(StepBits, AreTheSameUnderBothExecutors) {
  EXPECT_EQ(train(device::ExecutorKind::kInline, 1, kernels), train(device::ExecutorKind::kThreaded, 1, kernels));
}

TEST_P(StepBits, AreTheSameOnOneAndTwoComputeThreads) {
  const Result one = train(device::ExecutorKind::kInline, 1, kernels);
  EXPECT_EQ(one, train(device::ExecutorKind::kInline, 2, kernels));
  EXPECT_EQ(one, train(device::ExecutorKind::kThreaded, 2, kernels));
}

// The steps are not steps of zeros. The tied head favours each id's own row: the first loss is below the uniform one.
TEST_P(StepBits, BelongToStepsThatLearn) {
  const Result result = train(device::ExecutorKind::kInline, 1, kernels);
  EXPECT_LT(result.losses[0], std::log(kVocab));
  EXPECT_LT(result.losses[1], result.losses[0]);
  EXPECT_LT(result.losses[2], result.losses[1]);
}

}  // namespace
}  // namespace loom
