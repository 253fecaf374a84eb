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

// The choices of `op`, whose experts are counted from the scores.
Indices choices_of(DType dtype, const Doubles& scores, ExpertChoice op, const Doubles& bias = {}) {
  const Buffer buffer(stat_dtype(dtype), scores), added(stat_dtype(dtype), bias.empty() ? Doubles{0} : bias);
  op.experts = static_cast<std::int64_t>(scores.size()) / op.tokens;
  Indices choices(static_cast<std::size_t>(op.tokens * op.k), -1);
  choose_experts(dtype, op, buffer.data(), bias.empty() ? nullptr : added.data(), choices.data());
  return choices;
}

Indices top_k_of(DType dtype, const Doubles& probs, std::int64_t tokens, std::int64_t k) {
  return choices_of(dtype, probs, {.tokens = tokens, .k = k});
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

TEST(TopK, AddsTheBiasToTheChoiceOnly) {
  for (DType dtype : kFloats) {
    EXPECT_EQ(choices_of(dtype, {0.5, 0.25, 0.125, 0.0}, {.tokens = 1, .k = 2}, {0, 0, 0, 0.375}), (Indices{0, 3}));
  }
}

// Groups {0.6, 0.1}, {0.4, 0.4}, {0.5, 0.05}, {0.3, 0.3}: by their best expert 0 and 2 lead, by the sum of two 1 and 0.
TEST(TopK, ChoosesFromTheBestGroups) {
  const Doubles scores{0.6, 0.1, 0.4, 0.4, 0.5, 0.05, 0.3, 0.3};
  const auto chosen = [&](std::int64_t best_in_group) {
    return choices_of(DType::kF32, scores,
                      {.tokens = 1, .k = 3, .groups = 4, .best_groups = 2, .best_in_group = best_in_group});
  };
  EXPECT_EQ(chosen(1), (Indices{0, 4, 1}));
  EXPECT_EQ(chosen(2), (Indices{0, 2, 3}));
  // More groups than experts of the best ones.
  EXPECT_EQ(choices_of(DType::kF32, {0.1, 0.4, 0.2, 0.3}, {.tokens = 1, .k = 2, .groups = 4, .best_groups = 2}),
            (Indices{1, 3}));
}

// Experts 0 and 1 take two tokens of weights 0.1, 0.3, 0.2 and 0.4, 0.5, 0.5.
TEST(DropBeyondCapacity, KeepsTheLargestWeightsOrTheFirstTokens) {
  const Indices choices{0, 1, 1, 0, 0, 1};
  const Buffer weights(DType::kF32, Doubles{0.1, 0.4, 0.5, 0.3, 0.2, 0.5});
  const auto kept = [&](std::int64_t capacity, bool by_probability) {
    Indices kept(choices.size());
    drop_beyond_capacity(DType::kF32, {3, 2, 2, capacity, by_probability}, choices.data(), weights.data(), kept.data());
    return kept;
  };
  EXPECT_EQ(kept(2, true), (Indices{-1, -1, 1, 0, 0, 1}));
  EXPECT_EQ(kept(2, false), (Indices{0, 1, 1, 0, -1, -1}));
  EXPECT_EQ(kept(1, true), (Indices{-1, -1, 1, 0, -1, -1}));  // of equal weights the first
  EXPECT_EQ(kept(3, true), choices);
}

TEST(CountChoices, LeavesOutTokensThatAreNotCountedAndDroppedChoices) {
  const Indices choices{0, 1, 1, -1, 0, 1};
  Indices counts(3, -1);
  count_choices(3, 2, 3, choices.data(), nullptr, counts.data());
  EXPECT_EQ(counts, (Indices{2, 3, 0}));
  const std::vector<std::int32_t> counted{1, 1, 0};
  count_choices(3, 2, 3, choices.data(), counted.data(), counts.data());
  EXPECT_EQ(counts, (Indices{1, 2, 0}));
}

struct Order {
  Indices offsets, row_slots, token_rows;
};

Order order_of(const Indices& choices, std::int64_t k, std::int64_t experts, std::int64_t padded = 0) {
  const auto slots = choices.size();
  const auto rows = padded > 0 ? static_cast<std::size_t>(experts * padded) : slots;
  Order order{Indices(static_cast<std::size_t>(experts + 1)), Indices(rows), Indices(slots)};
  sort_by_expert({static_cast<std::int64_t>(slots) / k, k, experts, static_cast<std::int64_t>(rows), padded},
                 choices.data(), order.offsets.data(), order.row_slots.data(), order.token_rows.data());
  return order;
}

// Token 0 chose experts 3 and 0, token 1 chose 0 and 3, token 2 chose 3 and 1; nobody chose expert 2.
TEST(SortByExpert, StandsRowsInOrderOfExpertThenToken) {
  const Order order = order_of({3, 0, 0, 3, 3, 1}, 2, 4);
  EXPECT_EQ(order.offsets, (Indices{0, 2, 3, 3, 6}));
  EXPECT_EQ(order.row_slots, (Indices{1, 2, 5, 0, 3, 4}));
  EXPECT_EQ(order.token_rows, (Indices{0, 3, 1, 4, 2, 5}));
}

TEST(SortByExpert, LeavesDroppedChoicesWithoutARow) {
  const Order order = order_of({-1, 0, 0, -1, 3, 1}, 2, 4);
  EXPECT_EQ(order.offsets, (Indices{0, 2, 3, 3, 4}));
  EXPECT_EQ(order.row_slots, (Indices{1, 2, 5, 4, -1, -1}));
  EXPECT_EQ(order.token_rows, (Indices{0, -1, 1, -1, 2, 3}));
}

TEST(SortByExpert, PadsEveryExpertToItsCapacity) {
  const Order order = order_of({2, 0, 0, -1}, 2, 3, 2);
  EXPECT_EQ(order.offsets, (Indices{0, 2, 4, 6}));
  EXPECT_EQ(order.row_slots, (Indices{1, 2, -1, -1, 0, -1}));
  EXPECT_EQ(order.token_rows, (Indices{0, 4, 1, -1}));
}

TEST(SortByExpert, OfNoTokensGivesEveryExpertNone) { EXPECT_EQ(order_of({}, 2, 3).offsets, (Indices{0, 0, 0, 0})); }

TEST(SortByExpert, RefusesAnExpertThatDoesNotExist) {
  EXPECT_EQ(error_text<ModelError>([] {
              order_of({0, 1, 2, 4}, 2, 4);
            }),
            "sort_by_expert: token 1 chose expert 4 of 4; choices count from 0");
  EXPECT_EQ(error_text<ModelError>([] { order_of({-2}, 1, 4); }),
            "sort_by_expert: token 0 chose expert -2 of 4; choices count from 0");
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
    combine_tokens({dtype, kTokens, kChoices, kTokens * kChoices, kDim}, rows.data(), weights.data(),
                   order.row_slots.data(), order.token_rows.data(), y.data());
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
    gather_tokens({dtype, kTokens, kChoices, kTokens * kChoices, kDim}, x.data(), order.row_slots.data(), rows.data());
    gather_tokens_backward({dtype, kTokens, kChoices, kTokens * kChoices, kDim}, rows.data(), order.token_rows.data(),
                           back.data());
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
    choose_experts(dtype, {tokens, experts, k}, probs.data(), nullptr, choices.data());
    Buffer weights(dtype, tokens * k), dprobs(stat_dtype(dtype), tokens * experts), y(dtype, tokens * dim),
        drows(dtype, tokens * k * dim), dweights(dtype, tokens * k);
    const RoutingWeights op{tokens, experts, k, WeightNorm::kSum};
    routing_weights_forward(dtype, op, probs.data(), choices.data(), weights.data());
    const Order order = order_of(choices, k, experts);
    combine_tokens({dtype, tokens, k, tokens * k, dim}, rows.data(), weights.data(), order.row_slots.data(),
                   order.token_rows.data(), y.data());
    combine_tokens_backward({dtype, tokens, k, tokens * k, dim}, rows.data(), weights.data(), order.row_slots.data(),
                            dy.data(), drows.data(), dweights.data());
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
