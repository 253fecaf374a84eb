// Promise: a batch of token ids has what its sample has, row by row: targets that do not count are -100, segments end
//          where documents do, counted over the rows; samples begin again behind the last one.
// World:   a pair of documents 1..4, 5..9, 10..13, each ending in EOD 0; samples of 6 tokens.
#include "engine/data/token_batches.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/formats/indexed/indexed_writer.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"

namespace loom::data {
namespace {

using ::testing::ElementsAreArray;

constexpr int kSeq = 6;

std::filesystem::path pair_of(const std::filesystem::path& folder) {
  io::IndexedWriter writer(folder / "text_document", io::IndexedDtype::kU16);
  for (const std::vector<std::int32_t>& document :
       {std::vector<std::int32_t>{1, 2, 3, 4, 0}, {5, 6, 7, 8, 9, 0}, {10, 11, 12, 13, 0}}) {
    writer.add_sequence(document);
    writer.end_document();
  }
  writer.commit();
  return folder / "text_document";
}

std::vector<std::int32_t> row_of(const Tensor& tensor, std::int64_t row) {
  const auto all = tensor.to_vector<std::int32_t>();
  return {all.begin() + row * kSeq, all.begin() + (row + 1) * kSeq};
}

struct Rows {
  std::vector<std::int32_t> targets, positions;
  std::vector<std::int64_t> ends;
};

// What the row should be, from its tokens and the token behind them.
Rows expected(const std::vector<std::int32_t>& tokens, std::int32_t next, std::int64_t row) {
  Rows rows;
  int position = 0;
  for (int i = 0; i < kSeq; ++i) {
    const std::int32_t target = i + 1 < kSeq ? tokens[static_cast<std::size_t>(i) + 1] : next;
    const std::int32_t token = tokens[static_cast<std::size_t>(i)];
    rows.targets.push_back(token == 0 ? -100 : target);
    rows.positions.push_back(position++);
    if (token == 0) {
      position = 0;
      rows.ends.push_back(row * kSeq + i + 1);
    }
  }
  if (rows.ends.empty() || rows.ends.back() != (row + 1) * kSeq) rows.ends.push_back((row + 1) * kSeq);
  return rows;
}

class TokenBatches : public ::testing::Test {
 protected:
  TokenBatches() {
    options.data_path = {pair_of(folder)};
    options.split = "1,0,0";
    options.seq_length = kSeq;
  }
  DataLoaders open(std::int64_t samples) const { return token_data_loaders(options, {.eod = 0}, {samples, 0, 0}); }

  test::OneRank rank;
  const std::filesystem::path folder = test::fresh_folder();
  DataOptions options;
};

TEST_F(TokenBatches, HaveTargetsPositionsAndSegmentsOfTheirSamples) {
  options.reset_position_ids = options.reset_attention_mask = options.eod_mask_loss = true;
  const Batch batch = open(2).train(std::vector<std::int64_t>{0, 1});
  std::vector<std::int64_t> ends;
  std::int64_t scored = 0;
  for (std::int64_t row = 0; row < 2; ++row) {
    const auto tokens = row_of(batch["input_ids"], row);
    const auto targets = row_of(batch["targets"], row);
    const Rows rows = expected(tokens, targets.back(), row);
    EXPECT_THAT(targets, ElementsAreArray(rows.targets));
    EXPECT_THAT(row_of(batch["position_ids"], row), ElementsAreArray(rows.positions));
    ends.insert(ends.end(), rows.ends.begin(), rows.ends.end());
    scored += kSeq - std::ranges::count(targets, -100);
  }
  std::vector<std::int64_t> actual;
  for (const nn::Value& end : batch.at("actual_seq_len").list()) actual.push_back(end.number());
  EXPECT_EQ(actual, ends);
  EXPECT_GT(ends.size(), 2U);
  EXPECT_EQ(count_targets(batch).scored, scored);
  EXPECT_EQ(count_targets(batch).all, 2 * kSeq);
}

TEST_F(TokenBatches, HaveTokensAndTargetsAloneWhereNothingElseIsAskedFor) {
  const Batch batch = open(2).train(std::vector<std::int64_t>{1});
  EXPECT_EQ(batch.values.size(), 2U);
  EXPECT_EQ(count_targets(batch).scored, kSeq);
}

TEST_F(TokenBatches, BeginAgainBehindTheLastSample) {
  const DataLoaders loaders = open(2);
  const auto tokens = [&](std::int64_t sample) {
    return loaders.train(std::vector{sample})["input_ids"].to_vector<std::int32_t>();
  };
  EXPECT_EQ(loaders.about, "2 samples of 6 tokens from 1 pair for train");
  EXPECT_EQ(tokens(2), tokens(0));
  EXPECT_EQ(tokens(7), tokens(1));
  EXPECT_NE(tokens(0), tokens(1));
}

TEST(SampleCountsOfARun, AreThoseThatMegatronAsksFor) {
  const RunLength run{.train_iters = 1000, .eval_interval = 300, .eval_iters = 5, .global_batch_size = 8};
  EXPECT_EQ(sample_counts(run), (SampleCounts{8000, 160, 40}));
  RunLength by_samples = run;
  by_samples.train_samples = 100;
  EXPECT_EQ(sample_counts(by_samples)[0], 100);
  RunLength huge = run;
  huge.train_iters = std::numeric_limits<std::int64_t>::max() / 4;
  EXPECT_EQ(test::message_of<ConfigError>([&] { sample_counts(huge); }),
            "--train-iters: 2305843009213693951 times 8 samples do not fit into 64 bits; give less");
}

TEST(KindOfData, IsTokensWhereThereArePairs) {
  const auto folder = test::fresh_folder();
  DataOptions options;
  options.data_path = {pair_of(folder)};
  EXPECT_EQ(data_kind(options), DataKind::kTokens);
  options.data_path = {"0.5", pair_of(folder)};
  EXPECT_EQ(data_kind(options), DataKind::kTokens);
  EXPECT_EQ(data_inputs(options),
            (std::vector<std::filesystem::path>{folder / "text_document.idx", folder / "text_document.bin"}));
  options.data_path = {folder};
  EXPECT_EQ(data_kind(options), DataKind::kBytes);
  EXPECT_EQ(data_inputs(options), options.data_path);
  options.data_path = {};
  options.part_data_path[0] = {"a"};
  EXPECT_EQ(data_kind(options), DataKind::kTokens);
}

// 16 tokens of which each sample takes 6 and shares its last one: 2 whole samples.
TEST_F(TokenBatches, HaveAnEpochOfTheWholeSamples) {
  EXPECT_EQ(epoch_samples(options, 4), 2);
  options.data_path.insert(options.data_path.begin(), "1");
  EXPECT_EQ(test::message_of<ConfigError>([&] { epoch_samples(options, 4); }),
            "an epoch of data that is blended by weights has no length; give --train-iters or --train-samples");
}

TEST(ByteEpoch, HasTheSamplesThatAreNotHeldOut) {
  DataOptions options;
  options.data_path = {test::write_file(test::fresh_folder() / "text.txt", std::string(101, 'a'))};
  options.held_out_fraction = 0;
  options.seq_length = 10;
  EXPECT_EQ(epoch_samples(options, 4), 10);
}

}  // namespace
}  // namespace loom::data
