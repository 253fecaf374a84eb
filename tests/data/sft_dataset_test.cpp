// Promise: data for fine-tuning gives shifted labels, a loss over what is learnt, segments that never see each other,
//          and the cut-offs and the order of MindSpeed-LLM; what does not fit together is refused with the flag
//          and the files.
// World:   pairs of a few lines, written by IndexedWriter.
#include "engine/data/sft_dataset.h"

#include <algorithm>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/sft_data.h"
#include "engine/formats/indexed/indexed_writer.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Tokens = std::vector<std::int32_t>;
constexpr std::int32_t kNo = -100;
constexpr std::int32_t kPad = 9;
constexpr std::int32_t kEod = 2;

struct TextLine {
  Tokens ids, labels, mask;
};

void write_key(const fs::path& prefix, const std::string& key, const std::vector<Tokens>& lines) {
  io::IndexedWriter writer(packed_prefix(prefix, key), io::IndexedDtype::kI32);
  for (const Tokens& line : lines) {
    writer.add_sequence(line);
    writer.end_document();
  }
  writer.commit();
}

fs::path write_lines(const std::vector<TextLine>& lines) {
  const fs::path prefix = fresh_folder() / "sft";
  std::vector<Tokens> ids, labels, masks;
  for (const TextLine& line : lines) {
    ids.push_back(line.ids);
    labels.push_back(line.labels);
    masks.push_back(line.mask.empty() ? Tokens(line.ids.size(), 1) : line.mask);
  }
  write_key(prefix, "input_ids", ids);
  write_key(prefix, "labels", labels);
  write_key(prefix, "attention_mask", masks);
  return prefix;
}

// Turns of `prompt` and `answer` tokens, which count up from `first`.
TextLine turns_of(std::int32_t first, const std::vector<std::pair<int, int>>& turns) {
  TextLine line;
  for (const auto& [prompt, answer] : turns) {
    for (int i = 0; i < prompt + answer; ++i, ++first) {
      line.ids.push_back(first);
      line.labels.push_back(i < prompt ? kNo : first);
    }
  }
  return line;
}

SftSampleOptions in_order(std::int64_t seq_length) {
  return {.seq_length = seq_length, .eod = kEod, .pad = kPad, .shuffle = false};
}

SftDataset train_of(const fs::path& prefix, const SftSampleOptions& sample, std::optional<std::int64_t> samples = {},
                    const std::string& split = "1") {
  SftDataOptions options{.prefix = prefix, .split = split, .sample = sample};
  options.samples[0] = samples;
  return std::move(open_sft_data(options)[0].value());
}

struct Row {
  Tokens tokens, labels, positions, attend_from;
  std::vector<float> loss_mask;
};

Row row_of(const SftDataset& data, std::int64_t sample, std::size_t size) {
  Row row{Tokens(size), Tokens(size), Tokens(size), Tokens(size), std::vector<float>(size)};
  data.fill(sample, {row.tokens, row.labels, row.loss_mask, row.positions, row.attend_from});
  return row;
}

// --- Rows

TEST(SftSample, LabelsAreShiftedAndPaddingStandsApart) {
  const SftDataset data = train_of(write_lines({turns_of(10, {{2, 2}, {1, 1}})}), in_order(8));
  const Row row = row_of(data, 0, 8);
  EXPECT_THAT(row.tokens, ElementsAre(10, 11, 12, 13, 14, 15, kPad, kPad));
  EXPECT_THAT(row.labels, ElementsAre(kNo, 12, 13, kNo, 15, kNo, kNo, kNo));
  EXPECT_THAT(row.loss_mask, ElementsAre(0, 1, 1, 0, 1, 0, 0, 0));
  EXPECT_THAT(row.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(row.attend_from, ElementsAre(0, 0, 0, 0, 0, 0, 6, 6));
}

TEST(SftSample, WithoutAPadIdTheEodPads) {
  SftSampleOptions options = in_order(4);
  options.pad = -1;
  EXPECT_THAT(row_of(train_of(write_lines({turns_of(10, {{1, 1}})}), options), 0, 4).tokens,
              ElementsAre(10, 11, kEod, kEod));
}

TEST(SftSample, ResetsAtEndOfDocumentWhereAsked) {
  TextLine line = turns_of(10, {{3, 3}});
  line.ids[2] = kEod;
  const fs::path prefix = write_lines({line});
  SftSampleOptions options = in_order(8);
  options.reset_position_ids = true;
  EXPECT_THAT(row_of(train_of(prefix, options), 0, 8).positions, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  EXPECT_THAT(row_of(train_of(prefix, options), 0, 8).attend_from, ElementsAre(0, 0, 0, 0, 0, 0, 6, 6));
  options.reset_attention_mask = true;
  EXPECT_THAT(row_of(train_of(prefix, options), 0, 8).attend_from, ElementsAre(0, 0, 0, 3, 3, 3, 6, 6));
}

// --- Packed samples

TextLine packed(const std::vector<TextLine>& lines, std::size_t size) {
  TextLine all;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    all.ids.insert(all.ids.end(), lines[i].ids.begin(), lines[i].ids.end());
    all.labels.insert(all.labels.end(), lines[i].labels.begin(), lines[i].labels.end());
    all.mask.resize(all.ids.size(), static_cast<std::int32_t>(i) + 1);
  }
  all.ids.resize(size, kPad);
  all.labels.resize(size, kNo);
  all.mask.resize(size, 0);
  return all;
}

template <class T>
std::vector<T> part(const std::vector<T>& values, std::size_t begin, std::size_t size) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin),
          values.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}

TEST(SftNeatPack, ASampleInAPackIsTheSampleAlone) {
  const std::vector<TextLine> alone = {turns_of(10, {{2, 3}}), turns_of(30, {{0, 2}}), turns_of(50, {{1, 1}, {2, 1}})};
  SftSampleOptions options = in_order(16);
  options.neat_pack = true;
  const SftDataset packs = train_of(write_lines({packed(alone, 16)}), options);
  const Row pack = row_of(packs, 0, 16);
  std::size_t begin = 0;
  for (const TextLine& line : alone) {
    const std::size_t size = line.ids.size();
    const Row single = row_of(train_of(write_lines({line}), in_order(16)), 0, size);
    EXPECT_EQ(part(pack.tokens, begin, size), single.tokens);
    EXPECT_EQ(part(pack.labels, begin, size), single.labels);
    EXPECT_EQ(part(pack.loss_mask, begin, size), single.loss_mask);
    EXPECT_EQ(part(pack.positions, begin, size), single.positions);
    EXPECT_THAT(part(pack.attend_from, begin, size), Each(static_cast<std::int32_t>(begin)));
    begin += size;
  }
  EXPECT_THAT(segment_lengths(pack.attend_from), ElementsAre(5, 2, 5, 4));
  EXPECT_THAT(part(pack.loss_mask, begin, 4), Each(0.0F));
}

// What MindSpeed-LLM wrote with --pack --neat-pack.
TEST(SftNeatPack, SegmentsAreThoseOfTheReference) {
  std::ifstream stream(fs::path(LOOM_SOURCE_DIR) / "tests/reference/sft/cases/neat_pack/case.json");
  const auto file = nlohmann::json::parse(stream);
  const fs::path prefix = fresh_folder() / "sft";
  std::map<std::string, std::vector<Tokens>> keys;
  for (const auto& [name, content] : file.at("content").items()) {
    for (const char* key : {"input_ids", "labels", "attention_mask"}) {
      if (name.find(key) == std::string::npos) continue;
      for (const auto& sequence : content.at("sequences")) keys[key].push_back(sequence.get<Tokens>());
      write_key(prefix, key, keys[key]);
    }
  }
  ASSERT_EQ(keys.size(), 3U);
  const auto size = keys["input_ids"].front().size();
  SftSampleOptions options = in_order(static_cast<std::int64_t>(size));
  options.neat_pack = true;
  const SftDataset data = train_of(prefix, options);
  ASSERT_EQ(data.sample_count(), static_cast<std::int64_t>(keys["input_ids"].size()));
  for (std::int64_t i = 0; i < data.sample_count(); ++i) {
    const Tokens& mask = keys["attention_mask"][static_cast<std::size_t>(i)];
    std::vector<std::int32_t> lengths;
    for (std::int32_t number = 1; number <= std::ranges::max(mask); ++number) {
      lengths.push_back(static_cast<std::int32_t>(std::ranges::count(mask, number)));
    }
    if (mask.back() == 0) lengths.push_back(static_cast<std::int32_t>(std::ranges::count(mask, 0)));
    EXPECT_THAT(segment_lengths(row_of(data, i, size).attend_from), ElementsAreArray(lengths)) << i;
  }
}

TEST(SftNeatPack, RefusesAMaskThatNumbersNothing) {
  const auto message = [](const Tokens& mask, bool neat) {
    TextLine line = turns_of(10, {{2, 2}});
    line.mask = mask;
    const fs::path prefix = write_lines({line});
    SftSampleOptions options = in_order(8);
    options.neat_pack = neat;
    const SftDataset data = train_of(prefix, options);
    std::string text = message_of<ConfigError>([&] { row_of(data, 0, 8); });
    return text.substr(text.find(prefix.string()) + prefix.string().size());
  };
  EXPECT_EQ(
      message({1, 1, 3, 3}, true),
      ": attention_mask of line 0 is 3 at token 2, where 2 is the most; it numbers the samples of a line 1, 2, 3 in "
      "turn and is 0 behind them");
  EXPECT_THAT(message({2, 2, 2, 2}, true), HasSubstr("is 2 at token 0, where 1 is the most"));
  EXPECT_THAT(message({1, 0, 1, 1}, true), HasSubstr("is 1 at token 2, where 0 is the most"));
  EXPECT_THAT(message({1, 2, 1, 1}, true), HasSubstr("is 1 at token 2"));
  EXPECT_THAT(message({-1, 1, 1, 1}, true), HasSubstr("is -1 at token 0"));
  EXPECT_EQ(message({1, 1, 2, 2}, false),
            ": attention_mask of line 0 numbers the samples of the line, which would see each other; give --neat-pack");
}

// --- Cut-offs

Tokens tokens_of(const SftDataset& data) { return row_of(data, 0, static_cast<std::size_t>(data.length(0))).tokens; }

TEST(SftCut, PromptAndAnswerShareTheRoom) {
  const auto cut = [](int prompt, int answer) {
    const SftDataset data = train_of(write_lines({turns_of(1000, {{prompt, answer}})}), in_order(60));
    const Row row = row_of(data, 0, 60);
    std::int64_t of_prompt = 0;
    while (of_prompt < 60 && row.tokens[static_cast<std::size_t>(of_prompt)] == 1000 + of_prompt) ++of_prompt;
    return std::pair(std::min<std::int64_t>(of_prompt, prompt),
                     data.length(0) - std::min<std::int64_t>(of_prompt, prompt));
  };
  EXPECT_EQ(cut(100, 20), std::pair(std::int64_t{40}, std::int64_t{20}));
  EXPECT_EQ(cut(20, 100), std::pair(std::int64_t{20}, std::int64_t{40}));
  EXPECT_EQ(cut(100, 100), std::pair(std::int64_t{30}, std::int64_t{30}));
}

TEST(SftCut, TurnsAreCutInTurnAndLabelsWithThem) {
  // Rooms 8 and then 3: 2 and 3 fit; of 4 and 4, 3 * 4 / 8 = 1 answer and 2 of the prompt.
  const SftDataset data = train_of(write_lines({turns_of(10, {{2, 3}, {4, 4}, {1, 1}})}), in_order(8));
  const Row row = row_of(data, 0, 8);
  EXPECT_THAT(row.tokens, ElementsAre(10, 11, 12, 13, 14, 15, 16, 19));
  EXPECT_THAT(row.labels, ElementsAre(kNo, 12, 13, 14, kNo, kNo, 19, kNo));
  EXPECT_EQ(data.length(0), 8);
}

TEST(SftCut, AnAnswerWithoutAPromptIsCutAtItsEnd) {
  EXPECT_THAT(tokens_of(train_of(write_lines({turns_of(10, {{0, 6}})}), in_order(4))), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(tokens_of(train_of(write_lines({turns_of(10, {{6, 0}})}), in_order(4))), ElementsAre(10, 11, 12, 13));
}

TEST(SftCut, AtTheEndOrNotAtAllWhereAsked) {
  const fs::path prefix = write_lines({turns_of(10, {{6, 3}})});
  SftSampleOptions options = in_order(4);
  options.cut = CutRule::kEnd;
  EXPECT_THAT(tokens_of(train_of(prefix, options)), ElementsAre(10, 11, 12, 13));
  options.cut = CutRule::kNone;
  const SftDataset fixed = train_of(prefix, options);
  EXPECT_EQ(message_of<ConfigError>([&] { row_of(fixed, 0, 4); }),
            "line 0 of --data-path " + prefix.string() +
                " has 9 tokens, more than --seq-length 4, and is not cut; give --variable-seq-lengths, or preprocess "
                "with this --seq-length");
  options.variable_lengths = true;
  const SftDataset variable = train_of(prefix, options);
  EXPECT_EQ(variable.length(0), 9);
  EXPECT_EQ(variable.padded_length(std::vector<std::int64_t>{0}), 16);
}

TEST(SftCut, PacksAreNotCut) {
  const fs::path prefix = write_lines({packed({turns_of(10, {{2, 3}})}, 16)});
  SftSampleOptions options = in_order(8);
  options.neat_pack = true;
  const SftDataset data = train_of(prefix, options);
  EXPECT_EQ(
      message_of<ConfigError>([&] { row_of(data, 0, 8); }),
      "--data-path " + prefix.string() +
          ": line 0 has 16 tokens of packed samples, more than --seq-length 8; preprocess with this --seq-length");
}

TEST(SftLength, RowsOfAMicroBatchAreAsLongAsTheirSamplesNeed) {
  const fs::path prefix = write_lines({turns_of(10, {{1, 2}}), turns_of(10, {{4, 6}}), turns_of(10, {{9, 9}})});
  SftSampleOptions options = in_order(14);
  EXPECT_EQ(train_of(prefix, options).padded_length(std::vector<std::int64_t>{0}), 14);
  options.variable_lengths = true;
  const SftDataset data = train_of(prefix, options);
  EXPECT_EQ(data.padded_length(std::vector<std::int64_t>{0}), 8);
  EXPECT_EQ(data.padded_length(std::vector<std::int64_t>{0, 2}), 14);  // 16 would be more than seq_length
  options.pad_to_multiple_of = 1;
  EXPECT_EQ(train_of(prefix, options).padded_length(std::vector<std::int64_t>{0, 1}), 10);
}

// --- Order

fs::path write_numbered(int count) {
  std::vector<TextLine> lines;
  for (int i = 0; i < count; ++i) lines.push_back(turns_of(100 * i, {{1, 1}}));
  return write_lines(lines);
}

TEST(SftOrder, EpochsAreShuffledByNumpysGenerator) {
  const fs::path prefix = write_numbered(10);
  SftSampleOptions options{.seq_length = 4, .pad = kPad};
  const SftDataset data = train_of(prefix, options, 15);
  // numpy.random.RandomState(1234).shuffle(), twice.
  EXPECT_THAT(data.line_index(), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3, 7, 3, 5, 1, 4, 8, 0, 2, 6, 9));
  EXPECT_EQ(row_of(data, 1, 4).tokens.front(), 200);
  options.shuffle = false;
  EXPECT_THAT(train_of(prefix, options, 3).line_index(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(SftOrder, PaddedEpochsAreWholeBatchesOfThePartsOwnLines) {
  SftSampleOptions options = in_order(4);
  options.padded_batch = 4;
  const fs::path prefix = write_numbered(10);
  EXPECT_THAT(train_of(prefix, options).line_index(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1));
  SftDataOptions parts{.prefix = prefix, .split = "5,5", .sample = options};
  EXPECT_THAT(open_sft_data(parts)[1]->line_index(), ElementsAre(5, 6, 7, 8, 9, 5, 6, 7));
}

TEST(SftOrder, IsTheSameFromTheCache) {
  const fs::path prefix = write_numbered(10);
  SftDataOptions options{.prefix = prefix, .split = "8,2", .sample = {.seq_length = 4, .pad = kPad}};
  options.cache_path = prefix.parent_path() / "cache";
  const SftData first = open_sft_data(options);
  const SftData again = open_sft_data(options);
  EXPECT_FALSE(fs::is_empty(options.cache_path));
  EXPECT_THAT(again[0]->line_index(), ElementsAreArray(first[0]->line_index()));
  EXPECT_EQ(first[1]->sample_count(), 2);
  EXPECT_FALSE(first[2]);
}

// --- What does not fit together

std::string refusal(const fs::path& prefix, const SftSampleOptions& sample = in_order(8),
                    std::optional<std::int64_t> samples = {}, const std::string& split = "1") {
  return message_of<ConfigError>([&] { train_of(prefix, sample, samples, split); });
}

TEST(SftFiles, AreThreeOfOneShape) {
  const fs::path prefix = write_numbered(3);
  EXPECT_TRUE(is_sft_prefix(prefix));
  EXPECT_FALSE(is_sft_prefix(prefix.parent_path() / "other"));
  write_key(prefix, "labels", {{1, 2}, {1, 2}});
  EXPECT_EQ(refusal(prefix),
            "--data-path " + prefix.string() +
                ": sft_packed_input_ids_document has 3 sequences, and sft_packed_labels_document has 2; "
                "write them together");
  write_key(prefix, "labels", {{1, 2}, {1, 2, 3}, {1, 2}});
  EXPECT_EQ(refusal(prefix), "--data-path " + prefix.string() +
                                 ": sequence 1 has 2 numbers in sft_packed_input_ids_document, and 3 in "
                                 "sft_packed_labels_document; write them together");
  fs::remove(io::bin_path(packed_prefix(prefix, "labels")));
  EXPECT_EQ(refusal(prefix),
            "--data-path " + prefix.string() + ": " + io::bin_path(packed_prefix(prefix, "labels")).string() +
                " is not there; data for fine-tuning has the pairs input_ids, attention_mask and labels, "
                "which `shardloom preprocess` writes with an instruction handler");
}

TEST(SftFiles, SaysWhatIsAskedTooMuch) {
  const fs::path prefix = write_numbered(1);
  const std::string start = "--data-path " + prefix.string();
  EXPECT_EQ(
      refusal(prefix, in_order(8), 5, "1,9"),
      start +
          ": 5 samples are needed of its part for train, lines [0, 0) of 1, which has no line; give that part more "
          "in --split, or ask for no sample of it");
  EXPECT_EQ(refusal(prefix, in_order(8), std::int64_t{1} << 61),
            start + ": 2305843009213693952 samples are needed of its part for train; ask for fewer");
  SftSampleOptions options = in_order(8);
  options.seed = std::uint64_t{1} << 32;
  EXPECT_THAT(refusal(prefix, options),
              HasSubstr("--seed 4294967296: samples for fine-tuning are shuffled by numpy's"));
  options = {.seq_length = 8};
  EXPECT_EQ(refusal(prefix, options),
            start +
                ": samples for fine-tuning are padded, and no tokenizer gives an id for that; give "
                "--tokenizer-name-or-path DIR with a pad_token or an eos_token");
  options.pad = 1;
  options.reset_position_ids = true;
  EXPECT_THAT(refusal(prefix, options), HasSubstr("need the id that ends a document, and no tokenizer gives one"));
}

TEST(SftFiles, FindsWhatChangedWhileItIsRead) {
  const fs::path prefix = write_numbered(3);
  const SftDataset data = train_of(prefix, in_order(8));
  write_key(prefix, "labels", {{1, 2}, {1, 2}, {1, 2}});
  EXPECT_THAT(message_of<Error>([&] { row_of(data, 0, 8); }), HasSubstr("since the run opened it"));
}

}  // namespace
}  // namespace loom::data
