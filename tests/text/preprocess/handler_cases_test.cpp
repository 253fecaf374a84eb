// Promise: handlers, templates, cut-offs and packing give the ids that MindSpeed-LLM's preprocess_data writes.
// World:   the cases of tests/reference/sft; their flags, read here.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

#include "engine/text/preprocess/dataset_info.h"
#include "engine/text/preprocess/packing.h"
#include "tests/text/preprocess/preprocess_files.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kReference = fs::path(LOOM_SOURCE_DIR) / "tests/reference/sft";

struct CaseFlags : PreprocessOptions {
  fs::path tokenizer;
};

CaseFlags flags_of(const std::vector<std::string>& arguments) {
  CaseFlags flags;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    const auto next = [&] { return arguments.at(++i); };
    const auto list = [&] {
      std::vector<std::string> words;
      while (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) words.push_back(arguments[++i]);
      return words;
    };
    if (flag == "--input") flags.input = next();
    if (flag == "--handler-name") flags.handler_name = next();
    if (flag == "--prompt-type") flags.prompt_type = next();
    if (flag == "--prompt-type-path") flags.prompt_type_path = kReference / next();
    if (flag == "--tokenizer-name-or-path") flags.tokenizer = kReference / next();
    if (flag == "--map-keys") flags.map_keys = next();
    if (flag == "--json-keys") flags.json_keys = list();
    if (flag == "--dataset-additional-keys") flags.dataset_additional_keys = list();
    if (flag == "--dataset-dir") flags.dataset_dir = kReference / next();
    if (flag == "--mix-strategy")
      flags.mix_strategy = next() == "concat" ? MixStrategy::kConcat : MixStrategy::kInterleaveOver;
    if (flag == "--seq-length") flags.seq_length = std::stoll(next());
    if (flag == "--pad-to-multiple-of") flags.pad_to_multiple_of = std::stoll(next());
    if (flag == "--append-eod") flags.append_eod = true;
    if (flag == "--pack") flags.pack = true;
    if (flag == "--neat-pack") flags.neat_pack = true;
    if (flag == "--enable-thinking") {
      const std::string value = next();
      flags.enable_thinking = value == "true"    ? EnableThinking::kTrue
                              : value == "false" ? EnableThinking::kFalse
                                                 : EnableThinking::kNone;
    }
  }
  return flags;
}

// What a pair .bin/.idx holds.
struct Content {
  std::vector<std::int64_t> documents = {0};
  std::vector<std::vector<TokenId>> sequences;
};

class Conversion {
 public:
  explicit Conversion(const CaseFlags& flags)
      : flags_(flags),
        tokenizer_(Tokenizer::from_file(flags.tokenizer)),
        ids_(read_special_ids(flags.tokenizer, tokenizer_)),
        encoder_(tokenizer_) {}

  std::map<std::string, Content> content() {
    if (flags_.handler_name == "LlamaFactoryInstructionHandler") {
      write_mixed();
    } else {
      handler_ = make_handler(flags_, tokenizer_, ids_);
      const auto samples = converted(*handler_, kReference / flags_.input);
      flags_.pack ? write_packed(samples) : write(samples);
    }
    return std::move(files_);
  }

 private:
  std::vector<SampleIds> converted(const Handler& handler, const fs::path& input) {
    const auto records = test::records_of(input);
    handler.check_columns(records);
    std::vector<SampleIds> samples;
    for (const Record& record : records) {
      Converted result = handler.convert(record, encoder_);
      EXPECT_NE(result.sample.has_value(), result.dropped.has_value());
      if (result.sample) samples.push_back(std::move(*result.sample));
    }
    return samples;
  }

  bool is_too_long(const SampleIds& sample) const {
    return std::ranges::any_of(sample, [&](const auto& ids) {
      return flags_.seq_length && static_cast<std::int64_t>(ids.size()) >= *flags_.seq_length;
    });
  }

  void write(const std::vector<SampleIds>& samples) {
    for (std::size_t k = 0; k < handler_->keys().size(); ++k) {
      const std::string prefix = handler_->is_pretrain() ? "data_" : "data_packed_";
      Content& file = files_[prefix + handler_->keys()[k] + "_document"];
      for (const SampleIds& sample : samples) {
        if (handler_->is_pretrain() && sample[k].empty()) continue;
        if (!is_too_long(sample)) file.sequences.push_back(sample[k]);
        file.documents.push_back(static_cast<std::int64_t>(file.sequences.size()));
      }
    }
  }

  void write_packed(std::vector<SampleIds> samples) {
    ASSERT_TRUE(can_pack(handler_->keys()));
    std::vector<SampleIds> kept;
    for (SampleIds& sample : samples) {
      if (flags_.neat_pack && is_too_long(sample)) cut_sample(sample, *flags_.seq_length - 1);
      if (!is_too_long(sample)) kept.push_back(std::move(sample));
    }
    std::vector<std::int64_t> lengths;
    for (const SampleIds& sample : kept) lengths.push_back(static_cast<std::int64_t>(sample.front().size()));
    std::vector<SampleIds> lines;
    for (const auto& bin : pack_bins(lengths, *flags_.seq_length - 1)) {
      std::vector<SampleIds> chosen;
      for (const std::int64_t number : bin) chosen.push_back(kept[static_cast<std::size_t>(number)]);
      lines.push_back(
          pack_bin(handler_->keys(), chosen, {*flags_.seq_length, *handler_->special_ids().pad, flags_.neat_pack}));
    }
    flags_.seq_length.reset();
    write(lines);
  }

  void write_mixed() {
    std::vector<std::vector<SampleIds>> sets;
    std::vector<std::int64_t> counts;
    for (const DatasetInfo& info : read_dataset_info(flags_.dataset_dir, flags_.input)) {
      handler_ = make_handler(options_of(info, flags_), tokenizer_, ids_);
      sets.push_back(converted(*handler_, info.path));
      counts.push_back(static_cast<std::int64_t>(sets.back().size()));
    }
    std::vector<SampleIds> samples;
    for (std::int64_t i = 0; i < mixed_count(flags_.mix_strategy, counts); ++i) {
      const MixedSample at = mixed_sample(flags_.mix_strategy, counts, i);
      samples.push_back(sets[at.dataset][static_cast<std::size_t>(at.sample)]);
    }
    write(samples);
  }

  CaseFlags flags_;
  Tokenizer tokenizer_;
  SpecialIds ids_;
  TokenEncoder encoder_;
  std::unique_ptr<Handler> handler_;
  std::map<std::string, Content> files_;
};

std::vector<std::vector<TokenId>> expected_sequences(const Json& file) {
  if (file.contains("sequences")) return file["sequences"].get<std::vector<std::vector<TokenId>>>();
  std::vector<std::vector<TokenId>> ones;
  for (const std::size_t length : file.at("all_ones")) ones.emplace_back(length, 1);
  return ones;
}

// Cases of conversion: those that the command's own tests do not have to themselves.
std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kReference / "cases")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("error_") && name != "merge") names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

class HandlerCase : public ::testing::TestWithParam<std::string> {};

TEST_P(HandlerCase, GivesTheIdsOfTheReference) {
  std::ifstream stream(kReference / "cases" / GetParam() / "case.json");
  const Json expected = Json::parse(stream);
  auto files = Conversion(flags_of(expected["arguments"])).content();
  ASSERT_EQ(files.size(), expected["content"].size());
  for (const auto& [name, file] : expected["content"].items()) {
    ASSERT_TRUE(files.contains(name)) << name;
    EXPECT_EQ(files[name].documents, file["documents"].get<std::vector<std::int64_t>>()) << name;
    EXPECT_EQ(files[name].sequences, expected_sequences(file)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, HandlerCase, ::testing::ValuesIn(case_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace loom::data
