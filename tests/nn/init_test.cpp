// Promise: first values depend on the seed, the parameter's path and the global element index, and on nothing else.
#include "engine/nn/init.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/nn/toy_modules.h"
#include "tests/support/boxes.h"

namespace loom::nn {
namespace {

using ::testing::Each;

std::vector<float> weight_of(Module& module, std::uint64_t seed) {
  materialize(module);
  init_weights(module, seed);
  return module.named_slots()[0].second->value.to_vector<float>();
}

TEST(Init, TheSamePathAndSeedGiveTheSameValues) {
  test::OneRank rank;
  Linear a(40, 30, false, 0.02), b(40, 30, false, 0.02), c(40, 30, false, 0.02);
  const auto values = weight_of(a, 7);
  EXPECT_EQ(weight_of(b, 7), values);
  EXPECT_NE(weight_of(c, 8), values);
}

TEST(Init, AnotherPathHasOtherValues) {
  test::OneRank rank;
  test::Mlp mlp(8, 16);
  materialize(mlp);
  init_weights(mlp, 7);
  EXPECT_NE(mlp.find("gate_proj")->own_parameters()[0]->value.to_vector<float>(),
            mlp.find("up_proj")->own_parameters()[0]->value.to_vector<float>());
}

TEST(Init, RowsOfASlotAreTheRowsOfTheWhole) {  // 7 rows over 3 ranks: 3, 3, 1
  test::OneRank rank;
  Linear whole(5, 7, false, 0.02);
  const auto all = weight_of(whole, 3);
  for (std::int64_t begin : {0, 3, 6}) {
    const std::int64_t rows = std::min<std::int64_t>(3, 7 - begin);
    Linear part(5, 7, false, 0.02);
    part.weight.value = Tensor::empty({rows, 5}, DType::kF32).set_requires_grad(true);
    part.weight.shard.offset[0] = begin;
    init_weights(part, 3);
    const std::vector<float> expected(all.begin() + begin * 5, all.begin() + (begin + rows) * 5);
    EXPECT_EQ(part.weight.value.to_vector<float>(), expected) << "from row " << begin;
  }
}

// One parameter [4, 6, 5], as experts have them.
class Experts final : public Module {
 public:
  Experts() : weight(register_parameter("weight", {4, 6, 5}, Init::normal(1.0))) {}
  std::string_view type_name() const override { return "Experts"; }
  ParamSlot& weight;

 protected:
  Value forward(const Args&) override { return {}; }
};

TEST(Init, ABoxHasTheValuesOfTheWhole) {
  test::OneRank rank;
  Experts whole;
  const auto all = weight_of(whole, 3);
  struct Case {
    Offset offset;
    Shape box;
  };
  for (const auto& [offset, box] : {Case{{2, 0, 0}, {1, 6, 5}},     // an expert
                                    Case{{0, 0, 2}, {4, 6, 3}},     // columns
                                    Case{{1, 2, 0}, {2, 3, 5}},     // experts and rows
                                    Case{{1, 3, 4}, {3, 2, 1}},     // cut on every dim
                                    Case{{4, 0, 0}, {0, 6, 5}},     // nothing
                                    Case{{0, 0, 0}, {4, 6, 5}}}) {  // all
    Experts part;
    test::give_box(part.weight, offset, box);
    init_weights(part, 3);
    EXPECT_EQ(part.weight.value.to_vector<float>(), test::box_of(all, {4, 6, 5}, offset, box))
        << describe_box(offset, box);
  }
}

TEST(Init, ManyTilesOfColumnsHaveTheValuesOfTheWhole) {
  test::OneRank rank;
  Linear whole(257, 200, false, 1.0);
  const auto all = weight_of(whole, 3);
  Linear part(257, 200, false, 1.0);
  test::give_box(part.weight, {0, 100}, {200, 150});  // 30000 elements, tiles of 16384
  init_weights(part, 3);
  EXPECT_EQ(part.weight.value.to_vector<float>(), test::box_of(all, {200, 257}, {0, 100}, {200, 150}));
}

TEST(Init, RefusesABoxOutsideOfTheParameter) {
  test::OneRank rank;
  Experts part;
  test::give_box(part.weight, {3, 0, 0}, {2, 6, 5});
  EXPECT_THROW(init_weights(part, 3), InvariantError);
}

// A parameter that starts at one value.
class Scaled final : public Module {
 public:
  Scaled() { register_parameter("factor", {5}, Init::constant(0.125)); }
  std::string_view type_name() const override { return "Scaled"; }

 protected:
  Value forward(const Args&) override { return {}; }
};

TEST(Init, AConstantIsThatValueEverywhere) {
  test::OneRank rank;
  Scaled scaled;
  EXPECT_THAT(weight_of(scaled, 3), Each(0.125f));
}

TEST(Init, ARankWithoutRowsHasNothingToWrite) {
  test::OneRank rank;
  Linear part(5, 2, false, 0.02);
  part.weight.value = Tensor::empty({0, 5}, DType::kF32).set_requires_grad(true);
  part.weight.shard.offset[0] = 2;
  EXPECT_NO_THROW(init_weights(part, 3));
}

TEST(Init, MoreThanATileOfElementsHasTheSameValuesAsItsRows) {
  test::OneRank rank;
  Linear whole(257, 200, false, 1.0);  // 51400 elements, tiles of 16384
  const auto all = weight_of(whole, 3);
  Linear part(257, 200, false, 1.0);
  part.weight.value = Tensor::empty({50, 257}, DType::kF32);
  part.weight.shard.offset[0] = 150;
  init_weights(part, 3);
  EXPECT_EQ(part.weight.value.to_vector<float>(), std::vector<float>(all.begin() + 150 * 257, all.end()));
}

TEST(Init, DrawsWithTheStandardDeviationAsked) {
  test::OneRank rank;
  Linear module(200, 500, false, 0.02);
  double sum = 0, squares = 0;
  for (float v : weight_of(module, 1)) {
    sum += v;
    squares += double{v} * v;
  }
  constexpr double kCount = 100000;  // standard errors: 0.02 / sqrt(1e5) = 6e-5 and 0.02 / sqrt(2e5) = 4.5e-5
  EXPECT_NEAR(sum / kCount, 0, 3e-4);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 2e-4);
}

TEST(Init, OnesAndZerosAreWhatTheyAreCalled) {
  test::OneRank rank;
  LayerNorm norm(16, 1e-5);
  materialize(norm);
  init_weights(norm, 1);
  EXPECT_THAT(norm.weight.value.to_vector<float>(), Each(1.0f));
  EXPECT_THAT(norm.bias.value.to_vector<float>(), Each(0.0f));
}

TEST(Materialize, GivesMetaParametersBytesOnceAndKeepsTheOthers) {
  test::OneRank rank;
  test::ToyModel model(11, 8, 2, 1);
  model.named_slots()[1].second->value.set_requires_grad(false);
  materialize(model);
  EXPECT_FALSE(model.named_slots()[1].second->value.requires_grad());
  const Tensor first = model.named_slots()[0].second->value;
  EXPECT_TRUE(first.requires_grad());
  EXPECT_EQ(first.storage()->what(), "embed_tokens.weight");
  materialize(model);
  EXPECT_TRUE(model.named_slots()[0].second->value.is_same(first));
}

}  // namespace
}  // namespace loom::nn
