// Promise: between forward and backward a recomputed module keeps the tensors it was called with and nothing else.
// World:   one rank; a chain of L blocks on 256 floats: every tensor is 1024 bytes.
#include <gtest/gtest.h>

#include "tests/recompute/toys.h"

namespace loom {
namespace {

using test::Kind;

constexpr std::int64_t kElems = 256;
constexpr std::int64_t kTensorBytes = 1024;
constexpr int kBlocks = 5;

// Activation bytes after forward, with the result and the input held.
std::int64_t kept_bytes(std::optional<Kind> kind, bool whole_chain = false) {
  test::OneRank rank;
  std::vector<std::shared_ptr<nn::Module>> blocks;
  for (int i = 0; i < kBlocks; ++i) blocks.push_back(test::twist(kElems));
  test::Chain chain(blocks);
  test::fill(chain);
  if (kind) {
    for (const auto& block : blocks) test::checkpoint(*block, *kind);
    if (whole_chain) test::checkpoint(chain, *kind);
  }
  const auto activations = [&] { return rank.stats().by_category[device::MemCategory::kActivation]; };
  const std::int64_t before = activations();
  const Tensor x = test::input(kElems);
  const Tensor y = chain(x);
  const std::int64_t kept = activations() - before;
  autograd::backward(ops::mean(y));
  EXPECT_EQ(activations() - before, 2 * kTensorBytes);  // x and y: nothing outlives backward
  return kept;
}

TEST(KeptMemory, WithoutRecomputeIsTheInputAndThreeTensorsABlock) {  // x, then x * w, tanh, result of every block
  EXPECT_EQ(kept_bytes(std::nullopt), (1 + 2 * kBlocks) * kTensorBytes);
}

TEST(KeptMemory, IsTheInputOfEveryBlockAndTheResult) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    EXPECT_EQ(kept_bytes(kind), (kBlocks + 1) * kTensorBytes) << test::to_string(kind);
  }
}

TEST(KeptMemory, OfCheckpointsInsideAnotherIsTheOuterInputAndTheResult) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    EXPECT_EQ(kept_bytes(kind, /*whole_chain=*/true), 2 * kTensorBytes) << test::to_string(kind);
  }
}

}  // namespace
}  // namespace loom
