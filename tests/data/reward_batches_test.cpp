// Promise: batches for reward models have labels where they stand, the length of each answer, and the numbers of pairs,
//          which do not depend on parts and order; what is no reward is refused with its line.
// World:   pairs of a few lines, written by IndexedWriter; samples of up to 8 tokens.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/data/sft_files.h"
#include "engine/data/token_batches.h"
#include "engine/formats/indexed/indexed_writer.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"

namespace loom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kNo = -100;
constexpr std::int32_t kStep = 50;
constexpr std::int32_t kGood = 60, kBad = 61;

void write_key(const std::filesystem::path& prefix, const std::string& key, const std::vector<Tokens>& lines) {
  io::IndexedWriter writer(packed_prefix(prefix, key), io::IndexedDtype::kI32);
  for (const Tokens& line : lines) {
    writer.add_sequence(line);
    writer.end_document();
  }
  writer.commit();
}

std::vector<std::int64_t> numbers_of(const nn::Value& list) {
  std::vector<std::int64_t> numbers;
  for (const nn::Value& number : list.list()) numbers.push_back(number.number());
  return numbers;
}

class RewardBatches : public ::testing::Test {
 protected:
  RewardBatches() {
    options.data_path = {folder / "set"};
    options.split = "1,0,0";
    options.seq_length = 8;
    options.no_shuffle = true;
  }
  Tokens values(const Batch& batch, const char* name) const { return batch[name].to_vector<std::int32_t>(); }

  const test::OneRank rank;
  const std::filesystem::path folder = test::fresh_folder();
  DataOptions options;
  TokenIds ids{.eod = 0, .pad = 9};
};

class ProcessBatches : public RewardBatches {
 protected:
  void write(const std::vector<Tokens>& tokens, const std::vector<Tokens>& labels, std::vector<Tokens> masks = {}) {
    for (const Tokens& line : tokens) {
      if (masks.size() < tokens.size()) masks.push_back(Tokens(line.size(), 1));
    }
    write_key(folder / "set", "input_ids", tokens);
    write_key(folder / "set", "labels", labels);
    write_key(folder / "set", "attention_mask", masks);
  }
  Batch first(std::int64_t samples) const {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < samples; ++i) numbers.push_back(i);
    return process_reward_data_loaders(options, ids, {samples, 0, 0}, 1).train(numbers);
  }
  std::string refusal() const {
    return test::message_of<ConfigError>([&] { first(1); });
  }
};

TEST_F(ProcessBatches, HaveLabelsAtTheirOwnTokens) {
  write({{1, kStep, 2, 3, kStep}, {4, kStep}}, {{kNo, kGood, kNo, kNo, kBad}, {kNo, kBad}});
  const Batch batch = first(2);
  EXPECT_THAT(values(batch, "input_ids"), ElementsAre(1, kStep, 2, 3, kStep, 9, 9, 9, 4, kStep, 9, 9, 9, 9, 9, 9));
  EXPECT_THAT(values(batch, "targets"), ElementsAre(kNo, kGood, kNo, kNo, kBad, kNo, kNo, kNo,  //
                                                    kNo, kBad, kNo, kNo, kNo, kNo, kNo, kNo));
  EXPECT_EQ(count_targets(batch).scored, 3);
}

TEST_F(ProcessBatches, CountAtPlaceholdersAloneWhereOneIsGiven) {
  write({{kStep, 1, kStep, 2}}, {{kGood, kBad, kNo, kGood}});
  ids.placeholder = kStep;
  EXPECT_THAT(values(first(1), "targets"), ElementsAre(kGood, kNo, kNo, kNo, kNo, kNo, kNo, kNo));
  ids.placeholder = 7;
  EXPECT_EQ(refusal(), "line 0 of " + (folder / "set").string() +
                           ": none of its 3 labels is at a --placeholder-token, id 7; give the token that the data "
                           "was preprocessed with");
}

TEST_F(ProcessBatches, RefuseALabelThatIsNoReward) {
  write({{1, kStep, kStep}}, {{kNo, kGood, 62}});
  ids.rewards = {kBad, kGood};
  EXPECT_EQ(refusal(), "line 0 of " + (folder / "set").string() +
                           ": the label of token 2 is id 62, and --reward-tokens are the ids 61, 60; name it there, or "
                           "preprocess with these --reward-tokens");
  ids.rewards.push_back(62);
  EXPECT_THAT(values(first(1), "targets"), ElementsAre(kNo, kGood, 62, kNo, kNo, kNo, kNo, kNo));
}

// A label at the last token of a packed sample is its own, whatever comes behind.
TEST_F(ProcessBatches, KeepPackedSamplesApart) {
  write({{1, kStep, 2, kStep}}, {{kNo, kGood, kNo, kBad}}, {{1, 1, 2, 2}});
  options.neat_pack = true;
  const Batch batch = first(1);
  EXPECT_THAT(values(batch, "targets"), ElementsAre(kNo, kGood, kNo, kBad, kNo, kNo, kNo, kNo));
  EXPECT_THAT(values(batch, "position_ids"), ElementsAre(0, 1, 0, 1, 0, 1, 2, 3));
  EXPECT_THAT(numbers_of(batch.at("actual_seq_len")), ElementsAre(2, 4, 8));
}

TEST_F(ProcessBatches, AreNotCutUnlessThatIsAskedFor) {
  write({{1, 2, 3, 4, kStep, 5, 6, 7, 8, kStep}}, {{kNo, kNo, kNo, kNo, kGood, kNo, kNo, kNo, kNo, kBad}});
  EXPECT_THAT(refusal(), ::testing::HasSubstr("has 10 tokens, more than --seq-length 8, and is not cut; give "
                                              "--variable-seq-lengths, or preprocess with this --seq-length"));
  options.cut_max_seqlen = true;
  EXPECT_THAT(values(first(1), "targets"), ElementsAre(kNo, kNo, kNo, kNo, kGood, kNo, kNo, kNo));
}

// With --neat-pack the mask says where samples end, and no id is needed for it.
TEST_F(ProcessBatches, OfNeatPackNeedNoEndOfDocument) {
  write({{1, kStep, 2, kStep}}, {{kNo, kGood, kNo, kBad}}, {{1, 1, 2, 2}});
  ids.eod = -1;
  options.reset_attention_mask = options.reset_position_ids = true;
  EXPECT_EQ(refusal(),
            "--reset-position-ids needs the id that ends a document, and no tokenizer gives one; give "
            "--tokenizer-name-or-path DIR with an eos_token");
  options.neat_pack = true;
  const auto packed = instruction_data_loaders(options, ids, {1, 0, 0}, 1).train(std::vector<std::int64_t>{0});
  EXPECT_THAT(numbers_of(packed.at("actual_seq_len")), ElementsAre(2, 4, 8));
  EXPECT_THAT(values(packed, "targets"), ElementsAre(kGood, kNo, kBad, kNo, kNo, kNo, kNo, kNo));
}

// --- pairs

class PairBatches : public RewardBatches {
 protected:
  // Line i has the prompt 10 + i; its answers are as long as i says.
  void write(const std::string& name, int lines, std::int32_t first) {
    for (const auto& [answer, extra] : {std::pair{"chosen", 1}, {"rejected", 2}}) {
      std::vector<Tokens> tokens, labels;
      for (int line = 0; line < lines; ++line) {
        Tokens of{first + line}, scored{kNo};
        for (int i = 0; i < extra + line % 3; ++i) {
          of.push_back(extra * 100 + i);
          scored.push_back(extra * 100 + i);
        }
        tokens.push_back(of);
        labels.push_back(scored);
      }
      write_key(folder / name, std::string(answer) + "_input_ids", tokens);
      write_key(folder / name, std::string(answer) + "_labels", labels);
    }
  }
  DataLoaders open(const SampleCounts& counts) const { return preference_data_loaders(options, ids, counts, 1); }
  DataLoaders open_scored(const SampleCounts& counts) const {
    return outcome_reward_data_loaders(options, ids, counts, 1);
  }
};

TEST_F(PairBatches, HaveTheLengthOfEachAnswer) {
  write("set", 3, 10);
  const std::vector<std::int64_t> two = {1, 2};
  EXPECT_TRUE(open({3, 0, 0}).train(two).find("lengths").is_none());
  EXPECT_THAT(numbers_of(open_scored({3, 0, 0}).train(two).at("lengths")), ElementsAre(3, 4, 4, 5));
  options.seq_length = 4;
  options.cut_max_seqlen = true;
  EXPECT_THAT(numbers_of(open_scored({3, 0, 0}).train(two).at("lengths")), ElementsAre(3, 4, 4, 4));
}

TEST_F(PairBatches, AreNumberedByTheirLinesWhateverPartAndOrder) {
  write("set", 9, 10);
  options.numbered_samples = true;
  options.no_shuffle = false;
  options.split = "6,3,0";
  const DataLoaders loaders = open({30, 30, 0});
  ASSERT_TRUE(loaders.numbered);
  EXPECT_EQ(loaders.numbered->count, 9);
  const std::vector<std::int64_t> asked = {4, 0, 17};
  for (const DataLoader& loader : {loaders.train, loaders.valid}) {
    const Batch drawn = loader(asked);
    const auto numbers = numbers_of(drawn.at("numbers"));
    const Batch same = loaders.numbered->batch(numbers);
    EXPECT_EQ(values(same, "input_ids"), values(drawn, "input_ids"));
    EXPECT_EQ(values(same, "targets"), values(drawn, "targets"));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(values(drawn, "input_ids")[i * 8], 10 + numbers[i]) << "the prompt of that line";
    }
  }
}

TEST_F(PairBatches, OfOnePrefixEachAreNumberedOneBehindAnother) {
  write("a", 2, 10);
  write("b", 3, 20);
  options.data_path = {};
  options.split = std::nullopt;
  options.part_data_path[0] = {(folder / "a").string()};
  options.part_data_path[1] = {(folder / "b").string()};
  options.numbered_samples = true;
  const DataLoaders loaders = open({2, 3, 0});
  EXPECT_EQ(loaders.numbered->count, 5);
  const std::vector<std::int64_t> last = {2};
  EXPECT_THAT(numbers_of(loaders.valid(last).at("numbers")), ElementsAre(4));
  const std::vector<std::int64_t> over = {1, 2, 4};
  const Tokens tokens = values(loaders.numbered->batch(over), "input_ids");
  EXPECT_THAT((Tokens{tokens[0], tokens[8], tokens[16], tokens[24]}), ElementsAre(11, 20, 22, 11));
  // The file stands for what is in it.
  const std::string digest = loaders.numbered->digest();
  EXPECT_EQ(open({2, 3, 0}).numbered->digest(), digest);
  write("b", 3, 21);
  EXPECT_NE(open({2, 3, 0}).numbered->digest(), digest);
}

TEST_F(PairBatches, HaveNoNumbersUnlessTheyAreAskedFor) {
  write("set", 3, 10);
  const DataLoaders loaders = open({3, 0, 0});
  EXPECT_FALSE(loaders.numbered);
  EXPECT_TRUE(loaders.train(std::vector<std::int64_t>{0}).find("numbers").is_none());
}

}  // namespace
}  // namespace loom::data
