// Promise: ranks that share sequences get their own tokens of the same samples, with the positions of the whole rows;
//          padding is not scored; ends of segments stay those of whole rows; nothing else of a batch is dropped.
// World:   batches of one and two rows; no rank, or one.

#include "engine/data/split_sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/data/token_batches.h"
#include "engine/tensor/ops.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensor rows(std::int64_t count, std::int64_t length, int first) {
  const Tensor x = Tensor::host({count, length}, DType::kI32, "rows");
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<std::int32_t>()[i] = first + static_cast<std::int32_t>(i);
  return x;
}

Batch batch_of(std::int64_t count, std::int64_t length) {
  return {{{"input_ids", rows(count, length, 0)}, {"targets", rows(count, length, 1)}}};
}

std::vector<std::int64_t> values(const Batch& batch, std::string_view name) {
  return batch[name].to_vector<std::int64_t>();
}

TEST(ASplitBatch, HasTheTokensOfTheRankInItsOrder) {
  const Batch part = split_batch(batch_of(2, 8), {2, 1}, 0);
  EXPECT_THAT(values(part, "input_ids"), ElementsAre(0, 1, 6, 7, 8, 9, 14, 15));
  EXPECT_THAT(values(part, "targets"), ElementsAre(1, 2, 7, 8, 9, 10, 15, 16));
  EXPECT_THAT(values(part, "position_ids"), ElementsAre(0, 1, 6, 7, 0, 1, 6, 7));
  EXPECT_THAT(values(split_batch(batch_of(1, 8), {1, 4}, 2), "input_ids"), ElementsAre(4, 5));
}

TEST(ASplitBatch, IsPaddedWhereRowsDoNotDivide) {
  const Batch part = split_batch(batch_of(2, 7), {2, 1}, 0);
  EXPECT_THAT(values(part, "input_ids"), ElementsAre(0, 1, 6, 0, 7, 8, 13, 0));
  EXPECT_THAT(values(part, "targets"), ElementsAre(1, 2, 7, -100, 8, 9, 14, -100));
  EXPECT_THAT(values(part, "position_ids"), ElementsAre(0, 1, 6, 6, 0, 1, 6, 6));
  EXPECT_EQ(count_targets(part).scored, 6);
  EXPECT_EQ(part.share, 6.0 / 14);
}

TEST(ASplitBatch, KeepsTheEndsOfWholeRows) {
  Batch packed = batch_of(2, 7);
  packed.values.emplace_back("position_ids", rows(2, 7, 100));
  packed.values.emplace_back("actual_seq_len", nn::ValueList{3, 7, 12, 14});
  const Batch part = split_batch(packed, {2, 1}, 1);
  EXPECT_THAT(values(part, "position_ids"), ElementsAre(102, 103, 104, 105, 109, 110, 111, 112));
  std::vector<std::int64_t> ends;
  for (const nn::Value& end : part.at("actual_seq_len").list()) ends.push_back(end.number());
  EXPECT_THAT(ends, ElementsAre(3, 8, 13, 16));
}

TEST(ASplitBatch, RefusesWhatItCannotSplit) {
  Batch images = batch_of(1, 8);
  images.values.emplace_back("pixel_values", rows(1, 8, 0));
  EXPECT_THAT(test::message_of<ModelError>([&] {
                split_batch(images, {2, 1}, 0);
              }),
              HasSubstr("splits input_ids, targets and position_ids; the batch also has 'pixel_values'"));
  Batch shorter = batch_of(1, 8);
  shorter.values[1].second = rows(1, 4, 0);
  EXPECT_THAT(test::message_of<ModelError>([&] {
                split_batch(shorter, {2, 1}, 0);
              }),
              HasSubstr("'targets' of the batch is int32 [1, 4]; whole numbers of the shape of input_ids [1, 8]"));
}

TEST(SplitLoaders, GiveTheCurrentRanksTokensAndCountThem) {
  DataLoaders loaders;
  loaders.train = [](std::span<const std::int64_t> samples) {
    return batch_of(static_cast<std::int64_t>(samples.size()), 8);
  };
  const DataLoaders split = split_sequences(loaders, {1, 2}, [](int rank) { return rank % 2; });
  const std::vector<std::int64_t> samples = {0};
  RankContext context(3, 4);
  const RankScope scope(context);
  const Batch part = split.train(samples);
  EXPECT_THAT(values(part, "input_ids"), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(split.count_tokens(part).scored, 4);
  EXPECT_FALSE(split.valid);
}

TEST(ASplitBatch, IsPaddedForRanksThatCutItsTokensOnceMore) {
  const Batch odd = batch_of(1, 7);
  const Batch padded = split_batch(odd, {}, 0, 4);
  EXPECT_EQ(padded["input_ids"].shape(), (Shape{1, 8}));
  EXPECT_EQ(values(padded, "targets").back(), ops::kIgnoreIndex);
  EXPECT_EQ(split_batch(odd, {1, 2}, 1, 3)["input_ids"].shape(), (Shape{1, 6}));
  const Batch even = split_batch(batch_of(1, 8), {}, 0, 4);
  EXPECT_TRUE(even.find("position_ids").is_none());
}

}  // namespace
}  // namespace loom::data
