// Promise: a layer is its operator with its own parameters, in torch.nn's shapes.
#include "engine/nn/layers.h"

#include <gmock/gmock.h>

#include "engine/nn/functional.h"
#include "tests/tensor/tensors.h"

namespace loom::nn {
namespace {

using test::constant;
using test::values;
using ::testing::DoubleEq;
using ::testing::ElementsAre;

void put(ParamSlot& slot, const std::vector<double>& values) { slot.value = constant(values, slot.shard.global_shape); }

TEST(Layers, LinearIsXTimesWeightTransposedPlusBias) {
  test::OneRank rank;
  Linear layer(2, 3, true, 0.02);
  EXPECT_EQ(layer.weight.shard.global_shape, (Shape{3, 2}));
  put(layer.weight, {1, 2, 3, 4, 5, 6});
  put(*layer.bias, {10, 20, 30});
  EXPECT_THAT(values(layer(constant({1, 1}, {1, 2}))), ElementsAre(13, 27, 41));
  EXPECT_EQ(Linear(2, 3, false, 0.02).bias, nullptr);
}

TEST(Layers, Conv1DKeepsItsWeightTheOtherWayRound) {
  test::OneRank rank;
  Conv1D layer(2, 3, 0.02);
  EXPECT_EQ(layer.weight.shard.global_shape, (Shape{2, 3}));
  put(layer.weight, {1, 2, 3, 4, 5, 6});
  put(layer.bias, {10, 20, 30});
  EXPECT_THAT(values(layer(constant({1, 1}, {1, 2}))), ElementsAre(15, 27, 39));
}

TEST(Layers, EmbeddingPicksRowsAndItsTiedHeadScoresThem) {
  test::OneRank rank;
  Embedding embedding(3, 2, 0.02);
  put(embedding.weight, {1, 2, 3, 4, 5, 6});
  TiedLinear head(embedding.weight);
  EXPECT_TRUE(head.weight.value.is_same(embedding.weight.value));
  EXPECT_EQ(head.type_name(), "Linear");
  const Tensor rows = embedding(test::ids({2, 0}));
  EXPECT_THAT(values(rows), ElementsAre(5, 6, 1, 2));
  EXPECT_THAT(values(head(rows)), ElementsAre(17, 39, 61, 5, 11, 17));
}

// Id 1 is met twice, id 2 once.
TEST(Layers, AnEmbeddingsPaddingGetsNoGradient) {
  test::OneRank rank;
  for (const KernelOptions& kernels : {KernelOptions::fast(), KernelOptions::pytorch()}) {
    rank.context().slot<KernelOptions>() = kernels;
    const auto gradient = [&](std::int64_t padding) {
      Embedding embedding(4, 2, 0.02);
      EXPECT_EQ(embedding.padding(), -1);
      embedding.set_padding(padding);
      EXPECT_EQ(embedding.padding(), padding);
      put(embedding.weight, {1, 2, 3, 4, 5, 6, 7, 8});
      embedding.weight.value.set_requires_grad(true);
      const Tensor rows = embedding(test::ids({1, 2, 1}));
      EXPECT_THAT(values(rows), ElementsAre(3, 4, 5, 6, 3, 4));  // its row is read as any other
      autograd::backward(test::sum(ops::mul(rows, constant({1, 2, 3, 4, 5, 6}, {3, 2}))));
      return test::grad(embedding.weight.value);
    };
    EXPECT_THAT(gradient(-1), ElementsAre(0, 0, 6, 8, 3, 4, 0, 0));
    EXPECT_THAT(gradient(1), ElementsAre(0, 0, 0, 0, 3, 4, 0, 0));
    EXPECT_THAT(gradient(2), ElementsAre(0, 0, 6, 8, 0, 0, 0, 0));
    EXPECT_THAT(gradient(3), ElementsAre(0, 0, 6, 8, 3, 4, 0, 0));
  }
}

TEST(Layers, AnEmbeddingsPaddingIsScoredByItsTiedHeadAsOthers) {
  test::OneRank rank;
  Embedding embedding(2, 2, 0.02);
  embedding.set_padding(0);
  put(embedding.weight, {1, 2, 3, 4});
  embedding.weight.value.set_requires_grad(true);
  TiedLinear head(embedding.weight);
  autograd::backward(test::sum(head(embedding(test::ids({0})))));
  // The head's gradient is the hidden row (1, 2) for every id; the embedding's (4, 6) of id 0 is dropped.
  EXPECT_THAT(test::grad(embedding.weight.value), ElementsAre(1, 2, 1, 2));
}

TEST(Layers, DropoutDropsWhileTheModuleTrains) {
  test::OneRank rank;
  const auto dropout = std::make_shared<Dropout>(0.5);
  ModuleList list;
  list.append(dropout);
  const Tensor x = constant(std::vector<double>(64, 1), {64});
  const auto trained = values((*dropout)(x));
  EXPECT_THAT(trained, testing::Each(testing::AnyOf(0, 2)));
  EXPECT_THAT(trained, testing::Contains(0));
  EXPECT_THAT(trained, testing::Contains(2));
  list.eval();
  EXPECT_FALSE(dropout->training());
  EXPECT_EQ(values((*dropout)(x)), values(x));
  list.train();
  EXPECT_THAT(values((*dropout)(x)), testing::Contains(0));
}

TEST(Layers, NormsScaleRows) {
  test::OneRank rank;
  RMSNorm rms(2, 0);
  put(rms.weight, {1, 2});
  EXPECT_THAT(values(rms(constant({7, 1}, {1, 2}))),
              ElementsAre(DoubleEq(7.0 / 5), DoubleEq(2.0 / 5)));  // sqrt((49 + 1) / 2) = 5
  LayerNorm layer(2, 0);
  put(layer.weight, {1, 2});
  put(layer.bias, {0, 1});
  EXPECT_THAT(values(layer(constant({7, 1}, {1, 2}))), ElementsAre(1, -2 + 1));  // mean 4, deviation 3
}

}  // namespace
}  // namespace loom::nn
