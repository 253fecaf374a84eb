// Promise: --data-path, --split and weights give the samples that Megatron gives; what cannot be drawn is refused with
//          the flag and the pair; and neither ranks, threads nor caches change a sample.
#include "engine/data/gpt_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "engine/core/error.h"
#include "tests/data/gpt_files.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::write_even_pair;
using test::write_pair;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tokens = std::vector<std::int32_t>;

GptDataOptions options_of(const std::vector<std::string>& words, std::int64_t seq_length,
                          PerSplit<std::optional<std::int64_t>> samples = {}, const std::string& split = "1") {
  GptDataOptions options;
  options.blend = parse_blend("--data-path", words);
  options.split = split;
  options.samples = samples;
  options.sample.seq_length = seq_length;
  return options;
}

struct Sample {
  Tokens tokens, labels, positions, attend_from;
  std::vector<float> loss_mask;

  bool operator==(const Sample&) const = default;
};

template <class Data>
Sample sample_at(const Data& data, std::int64_t i, std::int64_t seq_length) {
  const auto length = static_cast<std::size_t>(seq_length);
  Sample s{Tokens(length), Tokens(length), Tokens(length), Tokens(length), std::vector<float>(length)};
  data.fill(i, {s.tokens, s.labels, s.loss_mask, s.positions, s.attend_from});
  return s;
}

std::vector<Sample> all_samples(const BlendedDataset& data, std::int64_t seq_length) {
  std::vector<Sample> all;
  for (std::int64_t i = 0; i < data.sample_count(); ++i) all.push_back(sample_at(data, i, seq_length));
  return all;
}

const BlendedDataset& train_of(const GptData& data) { return data[0].value(); }

// --- Samples

// Of the golden: documents 4 0 1 2 3 and the shuffle 5 2 3 1 0 4.
TEST(GptDataset, ReadsSamplesAcrossSequences) {
  const fs::path prefix = write_pair(fresh_folder() / "p", {5, 3, 7, 4, 6});
  const GptData data = open_gpt_data(options_of({prefix}, 4));
  // In the order of documents the stream is 119-124, 100-104, 105-107, 108-114, 115-118; sample 5 begins at its 20th.
  EXPECT_THAT(sample_at(train_of(data), 0, 4).tokens, ElementsAre(114, 115, 116, 117));
  EXPECT_THAT(sample_at(train_of(data), 0, 4).labels, ElementsAre(115, 116, 117, 118));
  EXPECT_THAT(sample_at(train_of(data), 4, 4).tokens, ElementsAre(119, 120, 121, 122));
  EXPECT_THAT(sample_at(train_of(data), 4, 4).positions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sample_at(train_of(data), 4, 4).loss_mask, ElementsAre(1, 1, 1, 1));
  EXPECT_THROW(sample_at(train_of(data), 6, 4), InvariantError);
}

TEST(GptDataset, NextSampleBeginsWithTheLastLabel) {
  const fs::path prefix = write_pair(fresh_folder() / "p", {5, 3, 7, 4, 6, 0, 1, 9});
  const GptData data = open_gpt_data(options_of({prefix}, 4, {30}));
  const GptDataset& set = train_of(data).sets().front();
  std::vector<Sample> in_order(static_cast<std::size_t>(set.sample_count()));
  for (std::int64_t i = 0; i < set.sample_count(); ++i) {
    in_order[static_cast<std::size_t>(set.shuffle_index()[static_cast<std::size_t>(i)])] = sample_at(set, i, 4);
  }
  for (std::size_t k = 1; k < in_order.size(); ++k) {
    EXPECT_EQ(in_order[k].tokens.front(), in_order[k - 1].labels.back()) << k;
  }
}

TEST(GptDataset, TheTypeOfTheFileDoesNotMatter) {
  const fs::path folder = fresh_folder();
  write_even_pair(folder / "narrow", 40, 7, io::IndexedDtype::kU16);
  write_even_pair(folder / "wide", 40, 7, io::IndexedDtype::kI32);
  const GptData narrow = open_gpt_data(options_of({folder / "narrow"}, 16, {50}));
  const GptData wide = open_gpt_data(options_of({folder / "wide"}, 16, {50}));
  EXPECT_EQ(all_samples(train_of(narrow), 16), all_samples(train_of(wide), 16));
}

GptSampleOptions specials() { return {.seq_length = 8, .eod = 1, .pad = 0}; }

// One sequence of 9 tokens, hence one sample: 5 1 6 7 1 0 8 1 | 9.
GptData nine_tokens(const GptSampleOptions& sample) {
  const fs::path prefix = fresh_folder() / "nine";
  io::IndexedWriter writer(prefix, io::IndexedDtype::kI32);
  writer.add_sequence(Tokens{5, 1, 6, 7, 1, 0, 8, 1, 9});
  writer.end_document();
  writer.commit();
  GptDataOptions options = options_of({prefix}, 8);
  options.sample = sample;
  return open_gpt_data(options);
}

TEST(GptSample, EndOfDocumentChangesNothingUnasked) {
  const Sample s = sample_at(train_of(nine_tokens(specials())), 0, 8);
  EXPECT_THAT(s.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(s.attend_from, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(segment_lengths(s.attend_from), ElementsAre(8));
  EXPECT_THAT(s.loss_mask, ElementsAre(1, 1, 1, 1, 0, 1, 1, 1));  // the label that is the pad id
}

TEST(GptSample, ResetsPositionsAndAttentionAndMasksTheLossAtEndOfDocument) {
  GptSampleOptions options = specials();
  options.reset_position_ids = true;
  EXPECT_THAT(sample_at(train_of(nine_tokens(options)), 0, 8).positions, ElementsAre(0, 1, 0, 1, 2, 0, 1, 2));
  EXPECT_THAT(sample_at(train_of(nine_tokens(options)), 0, 8).attend_from, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  options.reset_attention_mask = true;
  options.eod_mask_loss = true;
  const Sample s = sample_at(train_of(nine_tokens(options)), 0, 8);
  EXPECT_THAT(s.attend_from, ElementsAre(0, 0, 2, 2, 2, 5, 5, 5));
  EXPECT_THAT(segment_lengths(s.attend_from), ElementsAre(2, 3, 3));
  EXPECT_THAT(s.loss_mask, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0));
}

TEST(GptSample, PadIdsBecomeZeroAndTheirLossIsMasked) {
  GptSampleOptions options = specials();
  options.pad = 7;
  const Sample s = sample_at(train_of(nine_tokens(options)), 0, 8);
  EXPECT_THAT(s.tokens, ElementsAre(5, 1, 6, 0, 1, 0, 8, 1));
  EXPECT_THAT(s.labels, ElementsAre(1, 6, 0, 1, 0, 8, 1, 9));
  EXPECT_THAT(s.loss_mask, ElementsAre(1, 1, 0, 1, 1, 1, 1, 1));
}

TEST(GptSample, APadIdThatIsAnotherSpecialIdMasksNothing) {
  GptSampleOptions options = specials();
  options.pad = 1;
  EXPECT_EQ(pad_in_use(options), -1);
  EXPECT_THAT(sample_at(train_of(nine_tokens(options)), 0, 8).tokens, ElementsAre(5, 1, 6, 7, 1, 0, 8, 1));
  EXPECT_THAT(sample_at(train_of(nine_tokens(options)), 0, 8).loss_mask, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  options.pad = 7;
  options.special_ids = {3, 7};
  EXPECT_EQ(pad_in_use(options), -1);
  options.special_ids = {3};
  EXPECT_EQ(pad_in_use(options), 7);
}

TEST(GptSample, ThePartialLastSampleOfValidationIsPaddedIfItIsKept) {
  const fs::path prefix = write_pair(fresh_folder() / "p", {10, 3, 7});
  GptDataOptions options = options_of({prefix}, 8, {}, "0,1");
  options.sample.eod = 1;
  options.sample.pad = 0;
  EXPECT_EQ(open_gpt_data(options)[1]->sample_count(), 2);  // (20 - 1) / 8
  options.sample.drop_last_partial_validation = false;
  const GptData data = open_gpt_data(options);
  const GptDataset& set = data[1]->sets().front();
  ASSERT_EQ(set.sample_count(), 3);
  const auto last = std::ranges::find(set.shuffle_index(), 2) - set.shuffle_index().begin();
  const Sample s = sample_at(set, last, 8);  // from token 16: 4 of 9
  EXPECT_EQ(std::ranges::count(s.tokens, 0), 4);
  EXPECT_THAT(s.loss_mask, ElementsAre(1, 1, 1, 0, 0, 0, 0, 0));
  options.split = "1";
  EXPECT_EQ(open_gpt_data(options)[0]->sample_count(), 2);  // of training it is never kept
}

// --- Parts

PerSplit<std::int64_t> cut(const std::string& text, std::int64_t sequences) {
  PerSplit<std::int64_t> sizes{};
  const auto shares = parse_split(text);
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = shares[i] ? range_of(*shares[i], sequences).size() : -1;
  return sizes;
}

TEST(Split, CutsSequences) {
  EXPECT_THAT(cut("969,30,1", 1000), ElementsAre(969, 30, 1));
  EXPECT_THAT(cut("969,30,1", 10), ElementsAre(10, 0, 0));
  EXPECT_THAT(cut("90,10", 10), ElementsAre(9, 1, -1));
  EXPECT_THAT(cut("1", 7), ElementsAre(7, -1, -1));
  EXPECT_THAT(cut("0, 1/1", 6), ElementsAre(-1, 3, 3));
  EXPECT_THAT(cut("1,1", 5), ElementsAre(2, 3, -1));  // 2.5 is rounded to the even 2
  EXPECT_THAT(cut("1,1", 7), ElementsAre(4, 3, -1));  // 3.5 to 4
}

TEST(Split, RefusesWhatIsNone) {
  const auto message = [](const std::string& text) { return message_of<ConfigError>([&] { parse_split(text); }); };
  EXPECT_EQ(message("1,2,3,4"), "--split '1,2,3,4': it has 4 numbers; give three numbers of 0 or more, as in 969,30,1");
  EXPECT_THAT(message("0,0,0"), HasSubstr("--split '0,0,0': its numbers sum to 0"));
  EXPECT_THAT(message(""), HasSubstr("its numbers sum to 0"));
  EXPECT_THAT(message("1,-2"), HasSubstr("character 3 has no meaning here"));
  EXPECT_THAT(message("1e3"), HasSubstr("character 2 has no meaning here"));
  EXPECT_THAT(message("1.2.3"), HasSubstr("'1.2.3' is not a number"));
}

TEST(GptData, APartOfEvaluationWithoutATokenIsAbsentAndOneOfTrainingAnError) {
  const fs::path prefix = write_even_pair(fresh_folder() / "p", 10, 100);
  const GptData unasked = open_gpt_data(options_of({prefix}, 8, {10, 0, 0}, "969,30,1"));
  EXPECT_EQ(unasked[1]->sample_count(), 0);
  const GptData asked = open_gpt_data(options_of({prefix}, 8, {10, 5, 5}, "969,30,1"));
  EXPECT_EQ(asked[0]->sample_count(), 124);
  EXPECT_FALSE(asked[1]);
  EXPECT_FALSE(asked[2]);
  EXPECT_EQ(message_of<ConfigError>([&] {
              open_gpt_data(options_of({prefix}, 8, {5, 5, 0}, "1,99,0"));
            }),
            "--data-path " + prefix.string() +
                ": 5 samples are needed of its part for train, sequences [0, 0) of 10, which has no token; give that "
                "part more in --split, or ask for no sample of it");
}

// With weights every pair gives its share; without them what there is of each is enough.
TEST(GptData, APartOfABlendIsAbsentWhereAPairThatMustGiveHasNone) {
  const fs::path folder = fresh_folder();
  const std::string small = write_even_pair(folder / "small", 10, 100),
                    large = write_even_pair(folder / "large", 400, 100);
  EXPECT_FALSE(open_gpt_data(options_of({"1", small, "1", large}, 8, {10, 5, 0}, "969,30,1"))[1]);
  EXPECT_TRUE(open_gpt_data(options_of({small, large}, 8, {10, 5, 0}, "969,30,1"))[1]);
  EXPECT_FALSE(open_gpt_data(options_of({small, small}, 8, {10, 5, 0}, "969,30,1"))[1]);
}

TEST(GptData, RefusesSeedsOfMoreThan32BitsAndTooManySamples) {
  const fs::path prefix = write_even_pair(fresh_folder() / "p", 10, 100);
  GptDataOptions options = options_of({prefix}, 8);
  options.sample.seed = std::uint64_t{1} << 32;
  EXPECT_EQ(message_of<ConfigError>([&] { open_gpt_data(options); }),
            "--seed 4294967296: samples of .bin/.idx pairs are shuffled by numpy's generator, whose seeds are 0 to "
            "4294967295");
  EXPECT_THAT(
      message_of<ConfigError>([&] { open_gpt_data(options_of({prefix}, 8, {std::int64_t{1} << 50})); }),
      HasSubstr(": 1125899906842624 samples of 8 tokens are needed of its part for train, which has 1000 tokens; "
                "ask for fewer"));
}

TEST(GptData, PartsCanComeFromDataOfTheirOwn) {
  const fs::path folder = fresh_folder();
  write_even_pair(folder / "a", 10, 9);
  write_even_pair(folder / "b", 20, 9);
  GptDataOptions options = options_of({"unused"}, 8);
  options.blend.reset();
  options.blends[0] = parse_blend("--train-data-path", {folder / "a"});
  options.blends[2] = parse_blend("--test-data-path", {folder / "b"});
  const GptData data = open_gpt_data(options);
  EXPECT_EQ(data[0]->sets().front().range().size(), 10);
  EXPECT_FALSE(data[1]);
  EXPECT_EQ(data[2]->sets().front().range().size(), 20);
}

// --- Blends

TEST(DataPath, IsPrefixesOrWeightsAndPrefixes) {
  const auto blend = [](const std::vector<std::string>& words) { return parse_blend("--data-path", words); };
  EXPECT_FALSE(blend({"a"}).weights);
  EXPECT_FALSE(blend({"a", "b"}).weights);
  EXPECT_EQ(blend({"a", "b", "c"}).prefixes.size(), 3U);
  EXPECT_THAT(blend({"0.3", "a", "7e-1", "b"}).weights.value(), ElementsAre(0.3, 0.7));
  EXPECT_THAT(blend({"0.3", "a", "0.7", "b"}).prefixes, ElementsAre("a", "b"));
  EXPECT_EQ(blend({"1", "a", "2"}).prefixes.size(), 3U);  // an odd number of words: names, whatever they look like
}

TEST(DataPath, RefusesHalfWeights) {
  const auto message = [](const std::vector<std::string>& words) {
    return message_of<ConfigError>([&] { parse_blend("--data-path", words); });
  };
  EXPECT_EQ(
      message({"0.3", "a", "b", "c"}),
      "--data-path: 'b' is in the place of a weight, and other prefixes have one; give each prefix a weight, or none");
  EXPECT_THAT(message({"0", "a", "1", "b"}), HasSubstr("the weight '0' is not above 0; leave the data set out"));
  EXPECT_THAT(message({"1", "a", "nan", "b"}), HasSubstr("the weight 'nan' is not above 0"));
  EXPECT_THAT(message({}), HasSubstr("it names no data set"));
}

TEST(GptData, BlendsByWeight) {
  const fs::path folder = fresh_folder();
  write_even_pair(folder / "a", 50, 9);
  write_even_pair(folder / "b", 5, 9);
  const GptData data = open_gpt_data(options_of({"3", folder / "a", "1", folder / "b"}, 8, {40}));
  const BlendedDataset& train = train_of(data);
  EXPECT_EQ(train.sample_count(), 40);
  EXPECT_THAT(train.weights(), ElementsAre(0.75, 0.25));
  EXPECT_EQ(std::ranges::count(train.dataset_index(), 1), 10);
  EXPECT_EQ(train.sets()[1].plan().epochs, 2);  // ceil(10 * 1.005) = 11 samples of 8; an epoch has 5
  EXPECT_EQ(sample_at(train, 1, 8), sample_at(train.sets()[static_cast<std::size_t>(train.dataset_index()[1])],
                                              train.dataset_sample_index()[1], 8));
}

TEST(GptData, BlendsAllOfSeveralSetsWithoutWeights) {
  const fs::path folder = fresh_folder();
  write_even_pair(folder / "a", 50, 9);
  write_even_pair(folder / "b", 5, 9);
  EXPECT_EQ(train_of(open_gpt_data(options_of({folder / "a", folder / "b"}, 8))).sample_count(), 56 + 5);
  EXPECT_EQ(train_of(open_gpt_data(options_of({folder / "a", folder / "b"}, 8, {20}))).sample_count(), 20);
  EXPECT_EQ(train_of(open_gpt_data(options_of({folder / "a", folder / "b"}, 8, {100}))).sample_count(), 61);
}

TEST(GptData, ABlendThatDrawsMoreThanThereIsNamesTheSet) {
  const fs::path folder = fresh_folder();
  write_even_pair(folder / "a", 3, 9);
  write_even_pair(folder / "b", 3, 9);
  const GptData data = open_gpt_data(options_of({folder / "a", folder / "b"}, 8));
  const auto& sets = train_of(data).sets();
  ASSERT_EQ(sets[1].sample_count(), 3);
  const auto draw = [&](std::int64_t samples) {
    BlendIndex index = blend_by_weight(std::vector<double>{.25, .75}, samples);
    check_blend("--data-path", DataSplit::kTrain, sets,
                IndexArrays({std::move(index.dataset), std::move(index.sample)}));
  };
  EXPECT_NO_THROW(draw(4));
  EXPECT_EQ(message_of<ConfigError>([&] { draw(8); }), "--data-path: the blend for train draws 6 samples of " +
                                                           (folder / "b").string() +
                                                           ", which has 3; give it less weight, or ask for fewer");
}

TEST(GptData, WeightsNeedANumberOfSamples) {
  const fs::path prefix = write_even_pair(fresh_folder() / "p", 10, 9);
  EXPECT_EQ(
      message_of<ConfigError>([&] {
        open_gpt_data(options_of({"1", prefix, "2", prefix}, 8));
      }),
      "--data-path: data sets with weights need a number of samples for train; give it, or leave the weights out");
}

// --- Ranks, threads, files

TEST(GptData, IsTheSameForEveryThreadThatOpensIt) {
  const fs::path folder = fresh_folder();
  write_even_pair(folder / "a", 200, 9);
  GptDataOptions options = options_of({folder / "a"}, 16, {500});
  options.cache_path = folder / "cache";
  constexpr std::size_t kThreads = 4;
  std::vector<std::vector<Sample>> seen(kThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& samples : seen) {
      threads.emplace_back([&] { samples = all_samples(train_of(open_gpt_data(options)), 16); });
    }
  }
  options.cache_path.clear();
  const GptData alone = open_gpt_data(options);
  for (const auto& samples : seen) EXPECT_EQ(samples, all_samples(train_of(alone), 16));
}

TEST(GptData, FindsAPairThatChangedWhileItIsRead) {
  const fs::path prefix = write_even_pair(fresh_folder() / "p", 10, 9);
  const GptData data = open_gpt_data(options_of({prefix}, 8));
  write_even_pair(prefix, 9, 10);
  EXPECT_THAT(message_of<Error>([&] { sample_at(train_of(data), 0, 8); }),
              HasSubstr("p.idx: was replaced by another file since the run opened it; leave the file as it is"));
}

}  // namespace
}  // namespace loom::data
