// Promise: every tensor in nested lists and dicts is reached, once, in order, and nothing else changes.
#include "engine/nn/value.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom::nn {
namespace {

using test::constant;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

double first(const Tensor& x) { return test::values(x)[0]; }

Value nested() {
  return ValueDict{{"hidden", constant({1})},
                   {"cache", ValueList{constant({2}), ValueDict{{"key", constant({3})}}, 7, "text"}},
                   {"none", Value{}},
                   {"use_cache", true}};
}

TEST(Value, CollectsTensorsInOrder) {
  test::OneRank rank;
  std::vector<Tensor> tensors;
  nested().collect_tensors(tensors);
  std::vector<double> found;
  for (const Tensor& x : tensors) found.push_back(first(x));
  EXPECT_THAT(found, ElementsAre(1, 2, 3));
}

TEST(Value, MapsTensorsAndKeepsTheRest) {
  test::OneRank rank;
  const Value mapped = nested().map_tensors([](const Tensor& x) { return ops::scale(x, 10); });
  const ValueDict& dict = mapped.dict();
  EXPECT_EQ(dict[0].first, "hidden");
  EXPECT_EQ(first(dict[0].second), 10);
  const ValueList& cache = dict[1].second.list();
  EXPECT_EQ(first(cache[0]), 20);
  EXPECT_EQ(first(cache[1].dict()[0].second), 30);
  EXPECT_EQ(cache[2].number(), 7);
  EXPECT_TRUE(dict[2].second.is_none());
  EXPECT_TRUE(dict[3].second.flag());
}

TEST(Value, AnUndefinedTensorIsPassedOver) {
  test::OneRank rank;
  const Value mapped =
      Value(Tensor{}).map_tensors([](const Tensor&) -> Tensor { throw std::logic_error("not reached"); });
  EXPECT_FALSE(mapped.tensor().defined());
}

TEST(Value, SaysWhatItHoldsInstead) {
  test::OneRank rank;
  const auto text = [](const std::string& held, const std::string& wanted) {
    return ThrowsMessage<ModelError>(StrEq("[rank 0] a value is " + held + " where " + wanted + " is expected; give " +
                                           wanted + ", or read it as its own type"));
  };
  EXPECT_THAT([] { Value().tensor(); }, text("none", "a tensor"));
  EXPECT_THAT([] { Value(true).number(); }, text("a flag", "an integer"));
  EXPECT_THAT([] { Value(1.5).flag(); }, text("a number", "a flag"));
  EXPECT_THAT([] { Value("x").list(); }, text("a text", "a list"));
  EXPECT_THAT([] { Value(ValueList{}).dict(); }, text("a list", "a dict"));
  EXPECT_THAT([] { Value(3).tensor(); }, text("an integer", "a tensor"));
}

TEST(Args, FindsByPositionAndByName) {
  test::OneRank rank;
  Args args{{constant({1}), 5}, {{"mask", constant({2})}}};
  EXPECT_EQ(first(args.tensor(0)), 1);
  EXPECT_EQ(first(args.find("mask")), 2);
  EXPECT_TRUE(args.find("absent").is_none());
  EXPECT_THAT([&] { args.tensor(2); },
              ThrowsMessage<ModelError>(
                  StrEq("[rank 0] argument 2 (counted from 0) of a call with 2 arguments; give it by position "
                        "where the module is called")));
}

TEST(Args, MapsPositionalThenNamed) {
  test::OneRank rank;
  Args args{{constant({1}), ValueList{constant({2})}}, {{"mask", constant({3})}}};
  args.map_tensors([](const Tensor& x) { return ops::scale(x, -1); });
  std::vector<double> found;
  for (const Tensor& x : args.tensors()) found.push_back(first(x));
  EXPECT_THAT(found, ElementsAre(-1, -2, -3));
}

}  // namespace
}  // namespace loom::nn
