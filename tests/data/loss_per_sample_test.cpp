// Promise: the loss per sample is the mean over the samples of each one's mean over its targets that count, and so is
//          its gradient; a sample without any counts as 0.
// World:   one rank; a table of 3 rows of logits over 3 tokens; rows of 4 tokens of which 4, 1 and 0 targets count.
#include <cmath>
#include <gmock/gmock.h>

#include "engine/data/byte_batches.h"
#include "engine/nn/init.h"
#include "engine/nn/layers.h"
#include "engine/tensor/autograd.h"
#include "tests/support/one_rank.h"

namespace loom::data {
namespace {

constexpr int kTokens = 3, kRows = 3, kSeq = 4;
constexpr std::int32_t kIds[kRows][kSeq] = {{0, 1, 2, 1}, {2, 2, 0, 1}, {1, 1, 1, 1}};
constexpr std::int32_t kTargets[kRows][kSeq] = {{1, 2, 0, 0}, {-100, 1, -100, -100}, {-100, -100, -100, -100}};

double logit(int id, int token) { return 0.5 * id - 0.25 * id * token + 0.125 * token; }

double negative_log_probability(int id, int target) {
  double sum = 0;
  for (int token = 0; token < kTokens; ++token) sum += std::exp(logit(id, token));
  return std::log(sum) - logit(id, target);
}

Batch batch() {
  const Tensor ids = Tensor::host({kRows, kSeq}, DType::kI32, "ids"),
               targets = Tensor::host({kRows, kSeq}, DType::kI32, "t");
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kSeq; ++i) {
      ids.data<std::int32_t>()[row * kSeq + i] = kIds[row][i];
      targets.data<std::int32_t>()[row * kSeq + i] = kTargets[row][i];
    }
  }
  return {{{"input_ids", ids}, {"targets", targets}}};
}

TEST(LossPerSample, IsTheMeanOfTheSamplesMeans) {
  test::OneRank rank;
  nn::Embedding model(kTokens, kTokens, 1.0);
  nn::materialize(model);
  for (int id = 0; id < kTokens; ++id) {
    for (int token = 0; token < kTokens; ++token) {
      model.weight.value.data<float>()[id * kTokens + token] = static_cast<float>(logit(id, token));
    }
  }
  DataIterator data(batch());
  ForwardResult result = next_token_step_per_sample(data, model);
  const Tensor loss = result.loss_func(std::move(result.output)).loss;
  const double first = (negative_log_probability(0, 1) + negative_log_probability(1, 2) +
                        negative_log_probability(2, 0) + negative_log_probability(1, 0)) /
                       4;
  EXPECT_NEAR(loss.item(), (first + negative_log_probability(2, 1) + 0) / kRows, 1e-6);
  autograd::backward(loss);
  // Of token 0's row: one place in the first sample, which weighs 1 / 4 of 1 / 3; softmax minus its target 1.
  double sum = 0;
  for (int token = 0; token < kTokens; ++token) sum += std::exp(logit(0, token));
  for (int token = 0; token < kTokens; ++token) {
    const double expected = (std::exp(logit(0, token)) / sum - (token == 1 ? 1 : 0)) / 12;
    EXPECT_NEAR(model.weight.value.grad().to_vector<float>()[static_cast<std::size_t>(token)], expected, 1e-6);
  }
}

}  // namespace
}  // namespace loom::data
