// Promise: a token's experts are the most probable ones, of equal ones the lowest; rows stand in order of expert, then
//          of token; the same bits come from any number of threads.
#include "engine/kernels/routing.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "engine/core/error.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

using Indices = std::vector<std::int64_t>;

Indices top_k_of(DType dtype, const Doubles& probs, std::int64_t tokens, std::int64_t k) {
  const Buffer buffer(stat_dtype(dtype), probs);
  Indices choices(static_cast<std::size_t>(tokens * k), -1);
  top_k(dtype, tokens, static_cast<std::int64_t>(probs.size()) / tokens, k, buffer.data(), choices.data());
  return choices;
}

TEST(TopK, PicksTheLargestFirst) {
  for (DType dtype : kFloats) {
    EXPECT_EQ(top_k_of(dtype, {0.1, 0.5, 0.15, 0.25, 0.4, 0.3, 0.2, 0.1}, 2, 2), (Indices{1, 3, 0, 1})) << name(dtype);
  }
}

TEST(TopK, PicksTheLowestIndexAmongEquals) {
  EXPECT_EQ(top_k_of(DType::kF32, {0.25, 0.25, 0.25, 0.25}, 1, 2), (Indices{0, 1}));
  EXPECT_EQ(top_k_of(DType::kF32, {0.1, 0.3, 0.2, 0.2, 0.2}, 1, 3), (Indices{1, 2, 3}));
  EXPECT_EQ(top_k_of(DType::kF32, {0.0, 0.0, 0.0, 1.0}, 1, 4), (Indices{3, 0, 1, 2}));
}

TEST(TopK, TakesNanForTheLargestAndStillPicksEachExpertOnce) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(top_k_of(DType::kF64, {0.5, nan, 0.5, nan}, 1, 3), (Indices{1, 3, 0}));
}

struct Order {
  Indices offsets, row_slots, token_rows;
};

Order order_of(const Indices& choices, std::int64_t k, std::int64_t experts) {
  const auto slots = choices.size();
  Order order{Indices(static_cast<std::size_t>(experts + 1)), Indices(slots), Indices(slots)};
  sort_by_expert(static_cast<std::int64_t>(slots) / k, k, experts, choices.data(), order.offsets.data(),
                 order.row_slots.data(), order.token_rows.data());
  return order;
}

// Token 0 chose experts 3 and 0, token 1 chose 0 and 3, token 2 chose 3 and 1; nobody chose expert 2.
TEST(SortByExpert, StandsRowsInOrderOfExpertThenToken) {
  const Order order = order_of({3, 0, 0, 3, 3, 1}, 2, 4);
  EXPECT_EQ(order.offsets, (Indices{0, 2, 3, 3, 6}));
  EXPECT_EQ(order.row_slots, (Indices{1, 2, 5, 0, 3, 4}));
  EXPECT_EQ(order.token_rows, (Indices{0, 3, 1, 4, 2, 5}));
}

TEST(SortByExpert, OfNoTokensGivesEveryExpertNone) { EXPECT_EQ(order_of({}, 2, 3).offsets, (Indices{0, 0, 0, 0})); }

TEST(SortByExpert, RefusesAnExpertThatDoesNotExist) {
  EXPECT_EQ(error_text<ModelError>([] {
              order_of({0, 1, 2, 4}, 2, 4);
            }),
            "sort_by_expert: token 1 chose expert 4 of 4; choices count from 0");
  EXPECT_EQ(error_text<ModelError>([] { order_of({-1}, 1, 4); }),
            "sort_by_expert: token 0 chose expert -1 of 4; choices count from 0");
}

constexpr std::int64_t kTokens = 37, kChoices = 3, kExperts = 7, kDim = 21;

Indices random_choices() {
  const Doubles probs = normals(kTokens * kExperts, 5);
  return top_k_of(DType::kF64, probs, kTokens, kChoices);
}

TEST(CombineTokens, SumsATokensRowsTimesTheirWeightsAndRoundsOnce) {
  const Order order = order_of(random_choices(), kChoices, kExperts);
  for (DType dtype : kFloats) {
    const Buffer rows = normal_buffer(dtype, kTokens * kChoices * kDim, 1);
    const Buffer weights = normal_buffer(dtype, kTokens * kChoices, 2);
    Buffer y(dtype, kTokens * kDim);
    combine_tokens({dtype, kTokens, kChoices, kDim}, rows.data(), weights.data(), order.row_slots.data(),
                   order.token_rows.data(), y.data());
    const Doubles r = rows.values(), w = weights.values();
    Doubles want(kTokens * kDim);
    for (std::size_t row = 0; row < order.row_slots.size(); ++row) {
      const auto slot = static_cast<std::size_t>(order.row_slots[row]);
      for (std::size_t i = 0; i < kDim; ++i) want[slot / kChoices * kDim + i] += w[slot] * r[row * kDim + i];
    }
    expect_close(dtype, y.values(), want, 4, 20);
  }
}

TEST(GatherTokens, CopiesEachTokenToItsRowsAndSumsThemBack) {
  const Order order = order_of(random_choices(), kChoices, kExperts);
  for (DType dtype : kFloats) {
    const Buffer x = normal_buffer(dtype, kTokens * kDim, 1);
    Buffer rows(dtype, kTokens * kChoices * kDim), back(dtype, kTokens * kDim);
    gather_tokens({dtype, kTokens, kChoices, kDim}, x.data(), order.row_slots.data(), rows.data());
    gather_tokens_backward({dtype, kTokens, kChoices, kDim}, rows.data(), order.token_rows.data(), back.data());
    Doubles want = x.values();
    for (double& value : want) value *= kChoices;
    expect_close(dtype, back.values(), want, 2, 5);
  }
}

// Every tile boundary is crossed: 700 tokens of 4 x 131 elements are 6 tiles of 65536.
TEST(Routing, GivesTheSameBitsWithAnyNumberOfThreads) {
  constexpr std::int64_t tokens = 700, k = 4, experts = 600, dim = 131;
  const auto run = [&](DType dtype) {
    std::vector<std::vector<std::byte>> outputs;
    const Buffer probs = normal_buffer(stat_dtype(dtype), tokens * experts, 1),
                 dy = normal_buffer(dtype, tokens * dim, 2);
    const Buffer rows = normal_buffer(dtype, tokens * k * dim, 3);
    Indices choices(tokens * k);
    top_k(dtype, tokens, experts, k, probs.data(), choices.data());
    Buffer weights(dtype, tokens * k), dprobs(stat_dtype(dtype), tokens * experts), y(dtype, tokens * dim),
        drows(dtype, tokens * k * dim), dweights(dtype, tokens * k);
    const RoutingWeights op{tokens, experts, k, true};
    routing_weights_forward(dtype, op, probs.data(), choices.data(), weights.data());
    const Order order = order_of(choices, k, experts);
    combine_tokens({dtype, tokens, k, dim}, rows.data(), weights.data(), order.row_slots.data(),
                   order.token_rows.data(), y.data());
    combine_tokens_backward({dtype, tokens, k, dim}, rows.data(), weights.data(), order.row_slots.data(), dy.data(),
                            drows.data(), dweights.data());
    routing_weights_backward(dtype, op, probs.data(), choices.data(), dweights.data(), dprobs.data());
    for (const Buffer* buffer : {&weights, &dprobs, &y, &drows, &dweights}) outputs.push_back(buffer->bytes());
    return outputs;
  };
  try {
    ComputePool().resize(2);
  } catch (const ConfigError&) {
    GTEST_SKIP() << "this build has serial loops";
  }
  for (DType dtype : kFloats) {
    const auto alone = run(dtype);
    for (int threads : {2, 3}) {
      with_threads(threads, [&] { EXPECT_EQ(run(dtype), alone) << name(dtype) << " with " << threads << " threads"; });
    }
  }
}

}  // namespace
}  // namespace loom::kernels::testing
