// Promise: a module that runs over a few rows of its batch at a time gives the rows it would give, gradients that
//          differ by the order of their sums, and says which argument cannot be cut.
#include "engine/nn/chunk_mbs.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/core/rng_state.h"
#include "engine/nn/batch_rows.h"
#include "engine/nn/init.h"
#include "engine/nn/layers.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "tests/support/one_rank.h"

namespace loom::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = down(tanh(up(x))) + shift, and the rows it was called with.
class Feed final : public Module {
 public:
  Feed()
      : up_(register_module("up", std::make_shared<Linear>(3, 7, true, 0.5))),
        down_(register_module("down", std::make_shared<Linear>(7, 3, false, 0.5))) {}
  std::string_view type_name() const override { return "Feed"; }
  std::vector<std::int64_t> rows;

 protected:
  Value forward(const Args& args) override {
    const Tensor x = args.tensor(0);
    rows.push_back(x.shape()[0]);
    const Tensor y = down_(ops::tanh(up_(x)));
    if (args.find("shift").is_none()) return y;
    return ValueDict{{"y", ops::add(y, args.find("shift").tensor())}, {"x", ValueList{x}}};
  }

 private:
  Child<Linear> up_, down_;
};

std::unique_ptr<Feed> made() {
  auto model = std::make_unique<Feed>();
  materialize(*model);
  init_weights(*model, 3);
  return model;
}

Tensor batch(std::int64_t rows, float scale = 1) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * 6; ++i) values.push_back(scale * static_cast<float>((i * 7) % 11 - 5));
  return Tensor::from(values, {rows, 2, 3});
}

struct Outcome {
  std::vector<float> y, of_input, of_weight;
  std::vector<std::int64_t> rows;
};

Outcome run(std::optional<std::int64_t> rows_of_piece) {
  const auto model = made();
  if (rows_of_piece) chunk_mbs(*model, {.path = "feed", .chunk_mbs = *rows_of_piece});
  const Tensor x = batch(5);
  x.set_requires_grad(true);
  const Tensor y = (*model)(x);
  autograd::backward(y, batch(5, 0.25F));
  return {y.to_vector<float>(), x.grad().to_vector<float>(), model->parameters().front().grad().to_vector<float>(),
          model->rows};
}

// Up to the rounding of the matrix library, which may choose other kernels for fewer rows.
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected, std::int64_t rows) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 2e-6 * std::abs(expected[i]) + 1e-6) << rows;
  }
}

TEST(ChunkMbs, RowsAreThoseOfTheWholeBatch) {
  test::OneRank rank;
  const Outcome whole = run(std::nullopt);
  EXPECT_THAT(whole.rows, ElementsAre(5));
  for (const std::int64_t rows : {1, 2, 4, 5, 9}) {
    const Outcome pieces = run(rows);
    expect_near(pieces.y, whole.y, rows);
    expect_near(pieces.of_input, whole.of_input, rows);
    expect_near(pieces.of_weight, whole.of_weight, rows);
  }
  EXPECT_THAT(run(2).rows, ElementsAre(2, 2, 1));
}

TEST(ChunkMbs, NamedArgumentsAndResultsInListsAndDictsAreCutAndJoined) {
  test::OneRank rank;
  const auto model = made();
  const Args whole{{batch(3)}, {{"shift", batch(3, 2)}}};
  const Value expected = model->call(whole);
  chunk_mbs(*model, {.path = "feed", .chunk_mbs = 2, .chunk_kwarg_names = {"shift"}});
  const Value joined = model->call(whole);
  expect_near(joined["y"].tensor().to_vector<float>(), expected["y"].tensor().to_vector<float>(), 3);
  EXPECT_EQ(joined["x"].list()[0].tensor().to_vector<float>(), batch(3).to_vector<float>());
}

// What belongs to the rows is put in by the module, unless the user names it.
TEST(ChunkMbs, AModuleSaysWhatElseGoesWithItsRows) {
  test::OneRank rank;
  const auto model = made();
  const Args whole{{batch(5)}, {{"shift", batch(5, 2)}}};
  const std::vector<float> expected = model->call(whole)["y"].tensor().to_vector<float>();
  model->attach(std::make_shared<BatchRows>(BatchRows{[](Args& args, std::int64_t begin, std::int64_t rows) {
    args.named.front().second = args.named.front().second.tensor().rows(begin, rows);
  }}));
  chunk_mbs(*model, {.path = "feed", .chunk_mbs = 2});
  expect_near(model->call(whole)["y"].tensor().to_vector<float>(), expected, 2);
  EXPECT_THAT(model->rows, ElementsAre(5, 2, 2, 1));
}

// Its calls of dropout have the numbers that they would have in the whole batch, and so have later calls.
TEST(ChunkMbs, DropsWhatTheWholeBatchWould) {
  test::OneRank rank;
  const auto dropped = [](std::optional<std::int64_t> rows_of_piece) {
    ModuleList list;
    list.append(std::make_shared<Dropout>(0.5));
    Module& dropout = *list.find("0");
    if (rows_of_piece) chunk_mbs(dropout, {.path = "dropout", .chunk_mbs = *rows_of_piece});
    const RngForward forward({.key = 3, .numbers = {8, 9, 10, 11, 12}});
    std::vector<std::vector<float>> results;
    for (int call = 0; call < 2; ++call) results.push_back(dropout(batch(5)).tensor().to_vector<float>());
    return results;
  };
  const auto whole = dropped(std::nullopt);
  EXPECT_NE(whole[0], whole[1]);
  for (const std::int64_t rows : {1, 2, 4}) EXPECT_EQ(dropped(rows), whole) << rows;
}

std::string refusal(const ChunkMbsOptions& options, const Args& args) {
  const auto model = made();
  try {
    chunk_mbs(*model, options);
    model->call(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChunkMbs, SaysWhatCannotBeCut) {
  test::OneRank rank;
  EXPECT_EQ(refusal({.path = "feed", .chunk_mbs = 0}, {}), "chunk_mbs of 'feed' is 0; use at least 1 row");
  EXPECT_THAT(refusal({.path = "feed", .chunk_arg_indexs = {1}}, {{batch(3)}, {}}),
              HasSubstr("chunk_mbs of 'feed': chunk_arg_indexs names argument 1, and it was called with 1; they count "
                        "from 0"));
  EXPECT_THAT(refusal({.path = "feed", .chunk_kwarg_names = {"shift"}}, {{batch(3)}, {}}),
              HasSubstr("chunk_kwarg_names has 'shift', and it was called without it; remove the name"));
  EXPECT_THAT(refusal({.path = "feed", .chunk_kwarg_names = {"shift"}}, {{batch(3)}, {{"shift", batch(2)}}}),
              HasSubstr("the arguments to cut have 3 and 2 rows; cut only the arguments of the batch"));
  EXPECT_THAT(refusal({.path = "feed", .chunk_arg_indexs = {0}}, {{Value(3)}, {}}),
              HasSubstr("the arguments to cut hold no tensor; name others"));
  EXPECT_THAT(refusal({.path = "feed"}, {{batch(2)}, {{"shift", Tensor::from(std::vector<float>{1}, {})}}}), "");
}

}  // namespace
}  // namespace loom::nn
