// Promise: preprocess takes the flags of preprocess_data, from a YAML file too; what changes nothing is named, and what
//          is not built or does not fit is refused in one line with what to write.
// World:   files of flags of the test; no data.
#include <gmock/gmock.h>

#include "engine/cli/words/preprocess_arguments.h"
#include "tests/cli/parsed.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

using data::EnableThinking;
using data::MixStrategy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PreprocessArguments arguments(const Words& words) {
  return std::any_cast<PreprocessArguments>(std::get<OptionalArguments>(parsed(words)).values);
}
data::PreprocessOptions options(const Words& words) { return arguments(words).options; }

const Words kShort{"preprocess", "--input", "in.jsonl", "--output-prefix", "out/x", "--tokenizer-name-or-path", "tok"};
const Words kChat = kShort + Words{"--handler-name", "AlpacaStyleInstructionHandler"};

TEST(PreprocessFlags, HaveTheDefaultsOfThePublishedTool) {
  const auto o = options(kShort);
  EXPECT_EQ(o.input, "in.jsonl");
  EXPECT_EQ(o.output_prefix, "out/x");
  EXPECT_EQ(o.tokenizer_name_or_path, "tok");
  EXPECT_EQ(o.handler_name, "GeneralPretrainHandler");
  EXPECT_THAT(o.json_keys, ElementsAre("text"));
  EXPECT_EQ(o.map_keys, std::nullopt);
  EXPECT_EQ(o.prompt_type, std::nullopt);
  EXPECT_EQ(o.enable_thinking, EnableThinking::kNone);
  EXPECT_EQ(o.seq_length, std::nullopt);
  EXPECT_EQ(o.max_samples, std::nullopt);
  EXPECT_EQ(o.pad_to_multiple_of, 1);
  EXPECT_EQ(o.workers, 1);
  EXPECT_EQ(o.n_subs, 1);
  EXPECT_EQ(o.log_interval, 100);
  EXPECT_EQ(o.mix_strategy, MixStrategy::kConcat);
  EXPECT_EQ(o.placeholder_token, "ки");
  EXPECT_FALSE(o.append_eod || o.pack || o.neat_pack);
  EXPECT_THAT(o.merge_group_keys, IsEmpty());
}

TEST(PreprocessFlags, TakeEveryFlagUnderBothNamesOfTheCommand) {
  for (const char* command : {"preprocess", "preprocess_data"}) {
    Words words = kChat + Words{"--map-keys",
                                R"({"prompt": "question"})",
                                "--prompt-type",
                                "qwen",
                                "--prompt_type_path",
                                "t.json",
                                "--enable-thinking",
                                "true",
                                "--dataset-additional-keys",
                                "labels",
                                "answer",
                                "--append-eod",
                                "--seq-length",
                                "128",
                                "--pack",
                                "--neat-pack",
                                "--workers",
                                "4",
                                "--n-subs",
                                "3",
                                "--log-interval",
                                "7",
                                "--max-samples",
                                "9",
                                "--pad-to-multiple-of",
                                "8",
                                "--placeholder-token",
                                "<step>",
                                "--reward-tokens",
                                "+",
                                "-",
                                "--json-keys",
                                "a",
                                "b",
                                "--tokenizer-type",
                                "HuggingFaceTokenizer"};
    words.front() = command;
    const auto o = options(words);
    EXPECT_EQ(o.handler_name, "AlpacaStyleInstructionHandler");
    EXPECT_EQ(o.map_keys, R"({"prompt": "question"})");
    EXPECT_EQ(o.prompt_type, "qwen");
    EXPECT_EQ(o.prompt_type_path, "t.json");
    EXPECT_EQ(o.enable_thinking, EnableThinking::kTrue);
    EXPECT_THAT(o.dataset_additional_keys, ElementsAre("labels", "answer"));
    EXPECT_EQ(o.seq_length, 128);
    EXPECT_TRUE(o.append_eod && o.pack && o.neat_pack);
    EXPECT_EQ(o.workers, 4);
    EXPECT_EQ(o.n_subs, 3);
    EXPECT_EQ(o.log_interval, 7);
    EXPECT_EQ(o.max_samples, 9);
    EXPECT_EQ(o.pad_to_multiple_of, 8);
    EXPECT_EQ(o.placeholder_token, "<step>");
    EXPECT_THAT(o.reward_tokens, ElementsAre("+", "-"));
    EXPECT_THAT(o.json_keys, ElementsAre("a", "b"));
  }
}

TEST(PreprocessFlags, MixDataSetsAndMergePairs) {
  const auto mixed = options(kShort + Words{"--handler-name", "LlamaFactoryInstructionHandler", "--dataset-dir", "d",
                                            "--mix-strategy", "interleave_over"});
  EXPECT_EQ(mixed.dataset_dir, "d");
  EXPECT_EQ(mixed.mix_strategy, MixStrategy::kInterleaveOver);
  const auto merged =
      options({"preprocess", "--input", "parts", "--output-prefix", "all", "--merge-group-keys", "text", "title"});
  EXPECT_THAT(merged.merge_group_keys, ElementsAre("text", "title"));
}

TEST(PreprocessFlags, NameThoseWithoutEffect) {
  const auto given = arguments(kShort + Words{"--cache-dir", "c", "--overwrite-cache", "--streaming", "--seed", "1",
                                              "--dataset-impl", "mmap", "--pad-vocab-size-to", "9",
                                              "--make-vocab-size-divisible-by", "128", "--tokenizer-not-use-fast"});
  EXPECT_THAT(given.without_effect,
              ::testing::UnorderedElementsAre("--cache-dir", "--overwrite-cache", "--streaming", "--seed",
                                              "--pad-vocab-size-to", "--make-vocab-size-divisible-by",
                                              "--tokenizer-not-use-fast"));
}

TEST(PreprocessYaml, GivesFlagsThatTheCommandLineMayChange) {
  const std::string file =
      test::write_file(test::fresh_folder() / "grpo.yaml",
                       "input: ./data\noutput_prefix: out/x\ntokenizer_name_or_path: ./tok\n"
                       "tokenizer_type: HuggingFaceTokenizer\ntokenizer_not_use_fast: true\n"
                       "handler_name: R1AlpacaStyleInstructionHandler\n"
                       "map_keys: {\"prompt\": \"question\", \"query\": \"\", \"response\": answer}\n"
                       "dataset_additional_keys: [\"labels\"]\nworkers: 8\nprompt_type: qwen_r1\n"
                       "append_eod: True\npack: false\nenable_thinking: True\nseq_length:\n");
  const auto given = arguments({"preprocess", file, "--workers", "2"});
  const auto& o = given.options;
  EXPECT_EQ(o.input, "./data");
  EXPECT_EQ(o.handler_name, "R1AlpacaStyleInstructionHandler");
  EXPECT_EQ(o.map_keys, R"({"prompt":"question","query":"","response":"answer"})");
  EXPECT_THAT(o.dataset_additional_keys, ElementsAre("labels"));
  EXPECT_EQ(o.workers, 2);
  EXPECT_TRUE(o.append_eod);
  EXPECT_FALSE(o.pack);
  EXPECT_EQ(o.enable_thinking, EnableThinking::kTrue);
  EXPECT_EQ(o.seq_length, std::nullopt);
  EXPECT_THAT(given.without_effect, ElementsAre("--tokenizer-not-use-fast"));
}

TEST(PreprocessYaml, IsFoundAmongThoseThatAreShipped) {
  const Words files{"--input", "in.jsonl", "--output-prefix", "x", "--tokenizer-name-or-path", "tok"};
  const auto sft = options(Words{"preprocess_data", "alpaca_sft"} + files);
  EXPECT_EQ(sft.handler_name, "AlpacaStyleInstructionHandler");
  EXPECT_EQ(sft.map_keys, R"({"prompt":"instruction","query":"input","response":"output"})");
  EXPECT_EQ(sft.seq_length, 4096);
  EXPECT_TRUE(options(Words{"preprocess", "pretrain_text"} + files).append_eod);
  EXPECT_EQ(
      refusal({"preprocess", "alpaca_stf"}),
      "preprocess: its file of flags is alpaca_stf, neither a file nor a preset; did you mean alpaca_sft? presets "
      "are alpaca_sft, pretrain_text");
}

TEST(PreprocessYaml, NamesTheLineOfWhatIsWrong) {
  const auto folder = test::fresh_folder();
  const std::string unknown = test::write_file(folder / "unknown.yaml", "input: a\nhandler: b\n");
  EXPECT_THAT(refusal({"preprocess", unknown}), HasSubstr(unknown + ":2:1: unknown key 'handler'"));
  const std::string toggle = test::write_file(folder / "toggle.yaml", "input: a\nappend_eod: 3\n");
  EXPECT_EQ(refusal({"preprocess", toggle}), toggle + ":2:13: append_eod is 3; use true or false");
}

struct Bad {
  Words words;
  std::string message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << ::testing::PrintToString(bad.words); }

class BadPreprocess : public ::testing::TestWithParam<Bad> {};

TEST_P(BadPreprocess, IsRefusedWithWhatToWrite) { EXPECT_EQ(refusal(GetParam().words), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    All, BadPreprocess,
    ::testing::Values(
        Bad{{"preprocess"}, "preprocess: --input is missing; give a file or a folder of records"},
        Bad{{"preprocess", "--input", "a"},
            "preprocess: --output-prefix is missing; give the path that the names of all outputs begin with"},
        Bad{{"preprocess", "--input", "a", "--output-prefix", "b"},
            "preprocess: --tokenizer-name-or-path is missing; give the folder with tokenizer.json"},
        Bad{{"preprocess", "--input", "a", "--output-prefix", "out/"},
            "--output-prefix is out/, a folder; end it with the name that all outputs begin with"},
        Bad{kChat + Words{"--pack"}, "--pack needs --seq-length, the length of the packed lines; add --seq-length N"},
        Bad{kChat + Words{"--neat-pack"}, "--neat-pack goes with --pack alone; add --pack"},
        Bad{kShort + Words{"--pack", "--seq-length", "8"},
            "--pack does not go with --handler-name GeneralPretrainHandler: its documents are not packed; remove "
            "--pack"},
        Bad{kShort + Words{"--handler-name", "AlpacaStylePairwiseHandler", "--pack", "--seq-length", "8"},
            "--pack does not go with --handler-name AlpacaStylePairwiseHandler: the answers of a pair have lengths of "
            "their own; remove --pack"},
        Bad{kShort + Words{"--prompt-type", "qwen"},
            "--prompt-type does not go with --handler-name GeneralPretrainHandler, which has no templates; remove "
            "--prompt-type"},
        Bad{kShort + Words{"--handler-name", "LlamaFactoryInstructionHandler"},
            "preprocess: --dataset-dir is missing; give the folder with dataset_info.json"},
        Bad{kChat + Words{"--dataset-dir", "d"},
            "--dataset-dir goes with --handler-name LlamaFactoryInstructionHandler alone, but it is "
            "AlpacaStyleInstructionHandler; remove --dataset-dir"},
        Bad{kChat + Words{"--mix-strategy", "interleave_under"},
            "--mix-strategy goes with --handler-name LlamaFactoryInstructionHandler alone, but it is "
            "AlpacaStyleInstructionHandler; remove --mix-strategy"},
        Bad{kShort + Words{"--workers", "0"}, "--workers is 0; use a whole number of at least 1"},
        Bad{kShort + Words{"--n-subs", "0"}, "--n-subs is 0; use a whole number of at least 1"},
        Bad{kShort + Words{"--tokenizer-type", "GPT2BPETokenizer"},
            "--tokenizer-type is GPT2BPETokenizer; use PretrainedFromHF, HuggingFaceTokenizer"},
        Bad{kShort + Words{"--dataset-impl", "lazy"}, "--dataset-impl is lazy; use mmap, the only kind of files"},
        Bad{kShort + Words{"--split-sentences"},
            "--split-sentences is not built: a document is one sequence; remove it"},
        Bad{kShort + Words{"--handlername", "x", "--tokenizer-model", "t.model", "--interleave-probs", "0.1,0.9"},
            "3 flags are not taken:\n"
            "  unknown flag --handlername; did you mean --handler-name?\n"
            "  --tokenizer-model is of a tokenizer without tokenizer.json, which is not read; write "
            "--tokenizer-name-or-path DIR, a Hugging Face folder\n"
            "  --interleave-probs is not built: it draws from a Python library's random numbers; remove it, and the "
            "data sets take turns"}));

TEST(PreprocessHelp, NamesFlagsUnitsAndTheFile) {
  const auto help = std::get<EarlyExit>(parsed({"preprocess", "--help"}));
  EXPECT_EQ(help.code, 0);
  for (const char* text : {"--tokenizer-name-or-path DIR", "--merge-group-keys KEY", "--seq-length N",
                           "--handler-name NAME=GeneralPretrainHandler", "{concat,interleave_under,interleave_over}",
                           "configs/datasets", "--workers N"}) {
    EXPECT_THAT(help.text, HasSubstr(text));
  }
  EXPECT_THAT(std::get<EarlyExit>(parsed({"--help"})).text, HasSubstr("preprocess"));
}

}  // namespace
}  // namespace loom::cli
