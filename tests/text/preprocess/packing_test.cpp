// Promise: lengths are cut and put into bins as MindSpeed-LLM does it, in integers; a bin becomes one whole line;
//          samples of several data sets are mixed in the order of their counts.
// World:   numbers by hand.
#include "engine/text/preprocess/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "engine/core/error.h"
#include "engine/data/turn_cut.h"
#include "engine/text/preprocess/dataset_info.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Lengths = std::vector<std::int64_t>;

std::vector<Lengths> bins_of(const Lengths& lengths, std::int64_t capacity) {
  std::vector<Lengths> bins;
  for (const auto& bin : pack_bins(lengths, capacity)) {
    for (auto& length = bins.emplace_back(); const std::int64_t number : bin) {
      length.push_back(lengths[static_cast<std::size_t>(number)]);
    }
  }
  return bins;
}

TEST(Cut, SharesTheRoom) {
  EXPECT_EQ(cut_a({3, 7}, 10), (TurnLengths{3, 7}));
  EXPECT_EQ(cut_a({30, 70}, 10), (TurnLengths{3, 7}));
  EXPECT_EQ(cut_a({100, 1}, 10), (TurnLengths{9, 1}));
  EXPECT_EQ(cut_a({100, 0}, 10), (TurnLengths{10, 0}));
  EXPECT_EQ(cut_b({100, 20}, 60), (TurnLengths{40, 20}));
  EXPECT_EQ(cut_b({20, 100}, 60), (TurnLengths{20, 40}));
  EXPECT_EQ(cut_b({100, 100}, 60), (TurnLengths{30, 30}));
}

TEST(Cut, KeepsWhatFits) {
  for (std::int64_t prompt = 0; prompt <= 40; ++prompt) {
    for (std::int64_t answer = 0; answer <= 40; ++answer) {
      const TurnLengths whole{prompt, answer};
      const std::int64_t room = std::max<std::int64_t>(prompt + answer, 1);
      EXPECT_EQ(cut_a(whole, room), whole);
      EXPECT_EQ(cut_b(whole, room), whole);
    }
  }
}

TEST(Packing, TakesTheLargestThatFits) {
  EXPECT_THAT(bins_of({8, 3, 5, 1, 9, 4}, 9),
              ElementsAre(ElementsAre(9), ElementsAre(8, 1), ElementsAre(5, 4), ElementsAre(3)));
  EXPECT_THAT(pack_bins(Lengths{4, 4, 4}, 9), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
  EXPECT_THAT(pack_bins(Lengths{0, 9, 0}, 9), ElementsAre(ElementsAre(1, 2, 0)));
  EXPECT_THAT(pack_bins(Lengths{}, 9), IsEmpty());
  EXPECT_THROW(pack_bins(Lengths{10}, 9), InvariantError);
}

TEST(Packing, TakesEverySampleOnce) {
  Lengths lengths(1000);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int64_t>(i * i * 7 % 101);
  std::vector<int> seen(lengths.size());
  for (const auto& bin : pack_bins(lengths, 100)) {
    std::int64_t used = 0;
    for (const std::int64_t number : bin) {
      ++seen[static_cast<std::size_t>(number)];
      used += lengths[static_cast<std::size_t>(number)];
    }
    EXPECT_LE(used, 100);
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
}

const std::vector<std::string> kKeys = {"input_ids", "attention_mask", "labels"};
const std::vector<SampleIds> kSamples = {{{5, 6, 7}, {1, 1, 1}, {-100, 6, 7}}, {{8, 9}, {1, 1}, {-100, 9}}};

TEST(Packing, FillsLines) {
  EXPECT_THAT(pack_bin(kKeys, kSamples, {8, 0, false}),
              ElementsAre(ElementsAre(5, 6, 7, 8, 9, 0, 0, 0), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1),
                          ElementsAre(-100, 6, 7, -100, 9, -100, -100, -100)));
  EXPECT_THAT(pack_bin(kKeys, kSamples, {7, 3, true}),
              ElementsAre(ElementsAre(5, 6, 7, 8, 9, 3, 3), ElementsAre(1, 1, 1, 2, 2, 0, 0),
                          ElementsAre(-100, 6, 7, -100, 9, -100, -100)));
  EXPECT_THROW(pack_bin(kKeys, kSamples, {5, 0, false}), InvariantError);
}

TEST(Packing, CutsSamplesAndKnowsTheirKeys) {
  SampleIds sample = kSamples[0];
  cut_sample(sample, 2);
  EXPECT_THAT(sample, ElementsAre(ElementsAre(5, 6), ElementsAre(1, 1), ElementsAre(-100, 6)));
  cut_sample(sample, 5);
  EXPECT_EQ(sample[0].size(), 2U);
  EXPECT_TRUE(can_pack(std::vector<std::string>{"labels", "input_ids", "attention_mask"}));
  EXPECT_FALSE(can_pack(std::vector<std::string>{"input_ids", "attention_mask"}));
  EXPECT_FALSE(can_pack(std::vector<std::string>{"text"}));
}

// "A0 B0 ...": data set and sample.
std::string mixed(MixStrategy strategy, const Lengths& counts) {
  std::string order;
  for (std::int64_t i = 0; i < mixed_count(strategy, counts); ++i) {
    const MixedSample at = mixed_sample(strategy, counts, i);
    order += fmt::format("{}{}{}", i == 0 ? "" : " ", static_cast<char>('A' + at.dataset), at.sample);
  }
  return order;
}

TEST(Mix, TakesOneOfEachInTurn) {
  EXPECT_EQ(mixed(MixStrategy::kConcat, {2, 0, 1}), "A0 A1 C0");
  EXPECT_EQ(mixed(MixStrategy::kInterleaveUnder, {3, 2}), "A0 B0 A1 B1");
  EXPECT_EQ(mixed(MixStrategy::kInterleaveOver, {3, 2}), "A0 B0 A1 B1 A2 B0");
  EXPECT_EQ(mixed(MixStrategy::kInterleaveOver, {3}), "A0 A1 A2");
  EXPECT_EQ(mixed(MixStrategy::kInterleaveUnder, {3, 0}), "");
  EXPECT_EQ(test::message_of<ConfigError>([] {
              mixed(MixStrategy::kInterleaveOver, {3, 0});
            }),
            "--mix-strategy is interleave_over, and data set 2 of --input gives no sample; take it out");
}

class DatasetInfoFile : public ::testing::Test {
 protected:
  void file(const std::string& json) { test::write_file(folder_ / "dataset_info.json", json); }
  DatasetInfo info(const std::string& entry) {
    file(R"({"a": )" + entry + "}");
    return read_dataset_info(folder_, "a").at(0);
  }
  std::string refusal(const std::string& entry, const std::string& names = "a") {
    file(R"({"a": )" + entry + "}");
    const std::string text = test::message_of<ConfigError>([&] { read_dataset_info(folder_, names); });
    return text.starts_with(folder_.string()) ? text.substr(folder_.string().size() + 1) : text;
  }
  std::filesystem::path folder_ = test::fresh_folder();
};

TEST_F(DatasetInfoFile, SaysWhatRecordsAre) {
  const DatasetInfo plain = info(R"({"file_name": "x.json"})");
  EXPECT_EQ(plain.path, folder_ / "x.json");
  EXPECT_EQ(plain.handler_name, "AlpacaStyleInstructionHandler");
  EXPECT_EQ(plain.map_keys, "{}");
  EXPECT_EQ(info(R"({"file_name": "x", "columns": {"prompt": "p", "response": "r"}})").map_keys,
            R"({"history":"","prompt":"p","query":"","response":"r","system":""})");
  const DatasetInfo chat =
      info(R"({"file_name": "x", "formatting": "sharegpt", "columns": {"messages": "m"}, "tags": {"user_tag": "u"}})");
  EXPECT_EQ(chat.handler_name, "SharegptStyleInstructionHandler");
  EXPECT_EQ(chat.map_keys, R"({"messages":"m","system":"","tags":{"user_tag":"u"},"tools":""})");
  EXPECT_EQ(info(R"({"file_name": "x", "formatting": "openai"})").handler_name, "OpenAIInstructionHandler");

  HandlerOptions given;
  given.handler_name = "LlamaFactoryInstructionHandler";
  given.prompt_type = "qwen";
  const HandlerOptions options = options_of(chat, given);
  EXPECT_EQ(options.handler_name, chat.handler_name);
  EXPECT_EQ(options.prompt_type, "qwen");
  EXPECT_EQ(options.map_keys_place, (folder_ / "dataset_info.json").string() + ": a");
}

TEST_F(DatasetInfoFile, NamesSeveralSets) {
  file(R"({"one": {"file_name": "1.json"}, "two": {"file_name": "2.json"}})");
  const auto sets = read_dataset_info(folder_, "data/two, one ");
  EXPECT_EQ(sets.at(0).name, "two");
  EXPECT_EQ(sets.at(1).path, folder_ / "1.json");
}

TEST_F(DatasetInfoFile, NamesWhatIsWrong) {
  EXPECT_EQ(
      refusal(R"({"file_name": "x"})", "b"),
      "dataset_info.json: --input names 'b', which is no data set of this file; did you mean a? its data sets are a");
  EXPECT_EQ(refusal(R"({"file_name": "x"})", "a,,a"),
            "--input is 'a,,a', and name 2 of the list is empty; give names of dataset_info.json, separated by commas");
  EXPECT_THAT(
      refusal(R"({"hf_hub_url": "x/y"})"),
      HasSubstr("dataset_info.json: a has no file_name; Shardloom downloads no data sets: put the file beside "));
  EXPECT_EQ(refusal(R"({"file_name": "x", "formatting": "belle"})"),
            "dataset_info.json: a.formatting is \"belle\"; use alpaca, sharegpt or openai");
  EXPECT_EQ(
      refusal(R"({"file_name": "x", "columns": {"images": "i"}})"),
      "dataset_info.json: a.columns.images is \"i\"; data sets of formatting alpaca have the columns prompt, query, "
      "response, history, system");
  EXPECT_EQ(refusal(R"({"file_name": "x", "tags": {"role_tag": "r"}})"),
            "dataset_info.json: a.tags is an object; only data sets of formatting sharegpt have tags; take it out");
  EXPECT_THAT(refusal(R"({"file_name": "x", "ranking": true})"),
              HasSubstr("dataset_info.json: a.ranking is true; LlamaFactoryInstructionHandler writes no pairs; use"));
  EXPECT_THAT(refusal(R"({"file_name": "x", "num_samples": 5})"),
              HasSubstr("dataset_info.json: a.num_samples is not read by Shardloom; the keys here are file_name"));
  EXPECT_EQ(test::message_of<ConfigError>([&] { read_dataset_info("", "a"); }),
            "LlamaFactoryInstructionHandler reads data sets that a dataset_info.json names; give its folder by "
            "--dataset-dir");
  EXPECT_EQ(test::message_of<ConfigError>([&] { read_dataset_info("/nowhere", "a"); }),
            "/nowhere/dataset_info.json is no file; --dataset-dir is the folder of dataset_info.json");
}

}  // namespace
}  // namespace loom::data
