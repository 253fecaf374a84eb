// Promise: preprocess says in few lines what it wrote and what it dropped, or why it did not, with an exit status that
//          scripts can go by; its outputs are whole and of the same bytes for any number of workers, or not there.
// World:   the built program; records and the small tokenizers of tests/reference/sft.
#include <gmock/gmock.h>
#include <set>

#include "tests/support/program.h"

namespace loom::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const std::string kSft = LOOM_SOURCE_DIR "/tests/reference/sft/";
const std::string kTokenizer = kSft + "tokenizers/qwen2";
const Words kOut{"--output-prefix", "out/x"};

Words texts(const std::string& input) {
  return Words{"preprocess", "--input", input, "--tokenizer-name-or-path", kTokenizer, "--append-eod"} + kOut;
}

Words chats(const std::string& input) {
  return Words{"preprocess", "--input", input, "--tokenizer-name-or-path", kTokenizer} +
         Words{"--handler-name",     "AlpacaStyleInstructionHandler", "--prompt-type", "qwen",
               "--prompt-type-path", kSft + "templates.json"} +
         kOut;
}

class Preprocess : public ::testing::Test {
 protected:
  Preprocess() { fs::create_directories(folder.path("out")); }

  // Names in out/, hidden ones too.
  std::set<std::string> left() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path("out"))) names.insert(entry.path().filename());
    return names;
  }
  void expect_refused(const Words& words, const std::string& message) const {
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err, "shardloom: " + message + "\n");
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(left().empty());
  }
  // Some thousand records of a text and a chat.
  void write_many(const std::string& name, int records) const {
    std::string text;
    for (int i = 0; i < records; ++i) {
      std::string words;
      for (int word = 0; word <= i % 60; ++word) words += fmt::format("word {} of {} ", word * i, i);
      text +=
          fmt::format("{{\"text\": \"{}\", \"instruction\": \"Number {}?\", \"input\": \"\", \"output\": \"{}\"}}\n",
                      words, i, words);
    }
    folder.write(name, text);
  }

  const ProgramFolder folder;
};

TEST_F(Preprocess, SaysWhatItWrote) {
  const Outcome outcome = folder.run(texts(kSft + "inputs/text.jsonl") + Words{"--streaming", "--seed", "3"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, MatchesRegex("wrote out/x_text_document: 17 documents, 17 sequences, 876 tokens\n"
                                        "read 18 records, [0-9.]+ kB in [0-9.]+ s \\([0-9.]+ .?B/s\\)\n"));
  EXPECT_THAT(outcome.err, HasSubstr("without effect here: --streaming --seed\n"));
  EXPECT_THAT(outcome.err, ContainsRegex("dropped 1 record: .*; .*inputs/text.jsonl:[0-9]+\n"));
  EXPECT_EQ(left(), (std::set<std::string>{"x_text_document.bin", "x_text_document.idx"}));
}

TEST_F(Preprocess, CountsWhatIsTooLongWithItsPlace) {
  const Outcome outcome = folder.run(chats(kSft + "inputs/alpaca_array.json") + Words{"--seq-length", "20"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              ContainsRegex("dropped [0-9]+ records: [a-z -]+; the first are .*alpaca_array.json:[0-9]+, "));
}

TEST_F(Preprocess, WritesTheSameBytesForAnyNumberOfWorkersAndSubsets) {
  write_many("in.jsonl", 4000);
  for (const Words& words : {texts("in.jsonl"), chats("in.jsonl"),
                             chats("in.jsonl") + Words{"--seq-length", "256", "--pack", "--neat-pack"}}) {
    std::map<std::string, std::string> first;
    for (const Words& how : {Words{"--workers", "1"}, Words{"--workers", "2"}, Words{"--workers", "4"},
                             Words{"--workers", "2", "--n-subs", "4"}}) {
      ASSERT_EQ(folder.run(words + how).exit_code, 0);
      std::map<std::string, std::string> files;
      for (const std::string& name : left()) files[name] = folder.read("out/" + name);
      if (first.empty()) first = files;
      EXPECT_TRUE(files == first) << how.back();
    }
    EXPECT_GE(first.size(), 2U);
    EXPECT_GT(first.begin()->second.size(), 100'000U);
    fs::remove_all(folder.path("out"));
    fs::create_directories(folder.path("out"));
  }
}

TEST_F(Preprocess, TakesTheFirstRecordsAlone) {
  write_many("in.jsonl", 4000);
  const Outcome outcome = folder.run(texts("in.jsonl") + Words{"--max-samples", "2500", "--workers", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("wrote out/x_text_document: 2500 documents, 2500 sequences, "));
}

TEST_F(Preprocess, ReadsItsFlagsFromAFile) {
  folder.write("sft.yaml", fmt::format("input: {}inputs/text.jsonl\noutput_prefix: out/y\ntokenizer_name_or_path: {}\n"
                                       "json_keys: [text, title]\nappend_eod: true\n",
                                       kSft, kTokenizer));
  const Outcome outcome = folder.run({"preprocess_data", "sft.yaml"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("wrote out/y_title_document: 18 documents, 18 sequences, "));
}

TEST_F(Preprocess, MergesPairs) {
  const Words merge{"preprocess", "--input", kSft + "inputs/merge", "--merge-group-keys", "text_document"};
  const Outcome outcome = folder.run(merge + kOut);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, MatchesRegex("wrote out/x_text_document: 24 documents, 24 sequences, [0-9]+ tokens\n"
                                        "read [0-9.]+ kB in [0-9.]+ s \\([0-9.]+ .?B/s\\)\n"));
  EXPECT_EQ(folder.read("out/x_text_document.bin"), read_file(kSft + "cases/merge/all_text_document.bin"));
}

// --- what a user may get wrong

TEST_F(Preprocess, RefusesWhatIsNotThere) {
  const Words words = texts(kSft + "inputs/text.jsonl");
  expect_refused(texts("nothing.jsonl"), "--input: nothing.jsonl: no such file or folder");
  expect_refused(
      with_value(words, "--tokenizer-name-or-path", "Qwen/Qwen2.5-7B"),
      "--tokenizer-name-or-path: Qwen/Qwen2.5-7B is not there; give a Hugging Face folder with tokenizer.json, "
      "nothing is downloaded");
  folder.write("sp/tokenizer.model", "x");
  expect_refused(with_value(words, "--tokenizer-name-or-path", "sp"),
                 "--tokenizer-name-or-path: sp has no tokenizer.json; transformers writes one: "
                 "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)");
  folder.write("empty.jsonl", "");
  expect_refused(texts("empty.jsonl"), "--input: empty.jsonl has no records; give a file that has some");
}

TEST_F(Preprocess, NamesHandlersColumnsAndTemplatesThatAreNotThere) {
  const Outcome handler =
      folder.run(texts(kSft + "inputs/text.jsonl") + Words{"--handler-name", "AlpacaPretrainHandle"});
  EXPECT_EQ(handler.exit_code, 2);
  EXPECT_THAT(handler.err, HasSubstr("did you mean AlpacaPretrainHandler?"));
  const Outcome column = folder.run(texts(kSft + "inputs/text.jsonl") + Words{"--json-keys", "txet"});
  EXPECT_EQ(column.exit_code, 2);
  EXPECT_THAT(column.err, ContainsRegex("inputs/text.jsonl:1: no column 'txet' .*text, title, n\n"));
  const Outcome prompt = folder.run(with_value(chats(kSft + "inputs/alpaca.jsonl"), "--prompt-type", "qwne"));
  EXPECT_EQ(prompt.exit_code, 2);
  EXPECT_THAT(prompt.err, HasSubstr("did you mean qwen"));
  folder.write("bad.json", R"([{"name": "mine", "format_user": {"slots": ["{{content}}", {"tokn": "x"}]}}])");
  const Outcome slot = folder.run(with_value(with_value(chats(kSft + "inputs/alpaca.jsonl"), "--prompt-type", "mine"),
                                             "--prompt-type-path", "bad.json"));
  EXPECT_EQ(slot.exit_code, 2);
  EXPECT_THAT(slot.err, HasSubstr("bad.json"));
  EXPECT_TRUE(left().empty());
}

TEST_F(Preprocess, RefusesABrokenLineWithItsPlace) {
  write_many("in.jsonl", 3000);
  folder.write("in.jsonl", folder.read("in.jsonl") + "{\"text\": \"no end\n");
  for (const char* workers : {"1", "2"}) {
    const Outcome outcome = folder.run(texts("in.jsonl") + Words{"--workers", workers});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, ContainsRegex("^shardloom: in.jsonl:3001: "));
    EXPECT_TRUE(left().empty());
  }
}

TEST_F(Preprocess, NeedsTheFolderOfItsOutputs) {
  expect_refused(with_value(texts(kSft + "inputs/text.jsonl"), "--output-prefix", "nowhere/x"),
                 "--output-prefix: nowhere is not there; make the folder first, or give a prefix in another one");
}

TEST_F(Preprocess, NeedsAnEosTokenForAppendEod) {
  folder.write("tok/tokenizer.json", read_file(kTokenizer + "/tokenizer.json"));
  expect_refused(
      with_value(texts(kSft + "inputs/text.jsonl"), "--tokenizer-name-or-path", "tok"),
      "--append-eod: the tokenizer of tok has no eos token; name it in tokenizer_config.json (eos_token), or "
      "remove --append-eod");
}

TEST_F(Preprocess, WritesOverNoLinkAndNoFolder) {
  folder.write("kept.txt", "kept");
  fs::create_symlink(folder.path("kept.txt"), folder.path("out/x_text_document.bin"));
  const Outcome outcome = folder.run(texts(kSft + "inputs/text.jsonl"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "shardloom: --output-prefix: out/x_text_document.bin is a link and would be written over; remove it, or "
            "give another prefix\n");
  EXPECT_EQ(folder.read("kept.txt"), "kept");
}

TEST_F(Preprocess, WritesOverNoPairThatItMerges) {
  for (const char* file : {"a_part_text_document.bin", "a_part_text_document.idx"}) {
    folder.write(std::string("parts/") + file, read_file(kSft + "inputs/merge/" + file));
  }
  const Words merge{"preprocess", "--input", "parts", "--merge-group-keys", "part_text_document", "--output-prefix"};
  const Outcome outcome = folder.run(merge + Words{"parts/a"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(
      outcome.err,
      "shardloom: --output-prefix: parts/a_part_text_document.bin is also read by --input and would be lost; give "
      "another path\n");
  fs::remove(folder.path("parts/a_part_text_document.idx"));
  expect_refused(merge + Words{"out/x"},
                 "--input: parts/a_part_text_document.idx is not there, but its other half is; a pair is a .bin and an "
                 ".idx");
  expect_refused({"preprocess", "--input", "parts", "--merge-group-keys", "title", "--output-prefix", "out/x"},
                 "--merge-group-keys: no pair in parts has 'title' in its name; give a part of the names to merge");
}

// --- ends before the end

TEST_F(Preprocess, LeavesTheOldPairOnAFullDisk) {
  write_many("in.jsonl", 4000);
  ASSERT_EQ(folder.run(texts(kSft + "inputs/text.jsonl")).exit_code, 0);
  const std::string before = folder.read("out/x_text_document.bin");
  const Outcome outcome = folder.run_shell("ulimit -f 300; exec \"$0\" \"$@\"", texts("in.jsonl"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("out/x_text_document.bin: cannot write: File too large"));
  EXPECT_EQ(folder.read("out/x_text_document.bin"), before);
  EXPECT_EQ(left(), (std::set<std::string>{"x_text_document.bin", "x_text_document.idx"}));
}

class StoppedPreprocess : public Preprocess {
 protected:
  // Sends the signal once something is on the disk; a run of many seconds.
  Outcome stopped_by(int signal) const {
    write_many("in.jsonl", 20'000);
    for (int i = 0; i < 60; ++i)
      fs::create_hard_link(folder.path("in.jsonl"), folder.path(fmt::format("many/{}.jsonl", i)));
    StartedProgram program = folder.start(texts("many"));
    const auto begun = [&] {
      for (const auto& entry : fs::directory_iterator(folder.path("out"))) {
        if (entry.path().extension() == ".tmp" && fs::file_size(entry.path()) > 0) return true;
      }
      return false;
    };
    EXPECT_TRUE(StartedProgram::wait_until(begun));
    program.send(signal);
    return program.end();
  }
  void SetUp() override { fs::create_directories(folder.path("many")); }
};

TEST_F(StoppedPreprocess, EndsBetweenTwoBatchesAndLeavesNothing) {
  const Outcome outcome = stopped_by(SIGINT);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, EndsWith("shardloom: stopped by SIGINT; nothing was written\n"));
  EXPECT_TRUE(left().empty());
}

TEST_F(StoppedPreprocess, KilledLeavesNoOutputUnderItsName) {
  EXPECT_EQ(stopped_by(SIGKILL).exit_code, 128 + SIGKILL);
  for (const std::string& name : left()) EXPECT_TRUE(name.starts_with(".x_text_document.")) << name;
}

}  // namespace
}  // namespace loom::test
