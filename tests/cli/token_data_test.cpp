// Promise: `shardloom train` on .bin/.idx pairs: the loss is the mean over the tokens that count, whatever the ranks
//          and micro-batches; a run goes on where it stopped; what does not fit is said before anything is built.
// World:   the built program; pairs of documents of 1 to 40 ids that end in EOD, a tokenizer of 2000 ids.
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>

#include "engine/formats/indexed/indexed_writer.h"
#include "tests/support/checkpoints.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const std::string kTokenizer = LOOM_SOURCE_DIR "/tests/reference/sft/tokenizers/qwen2";
constexpr std::int32_t kEod = 0;  // <|endoftext|>

// Half of the documents are short, so that samples differ in how many of their tokens count.
void write_pair(const std::filesystem::path& prefix, int documents, std::int32_t first_id) {
  io::IndexedWriter writer(prefix, io::IndexedDtype::kI32);
  for (int document = 0; document < documents; ++document) {
    std::vector<std::int32_t> tokens;
    const int length = document % 40 < 20 ? 1 + document % 3 : 40;
    for (int i = 0; i < length; ++i) tokens.push_back(first_id + (7 * document + 3 * i) % 50);
    tokens.push_back(kEod);
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.commit();
}

class TokenData : public ::testing::Test {
 protected:
  TokenData() {
    folder.write("tokens.yaml",
                 "model_type: qwen2\nvocab_size: 2048\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
                 "num_attention_heads: 2\nnum_key_value_heads: 1\nmax_position_embeddings: 256\nrms_norm_eps: 1.0e-6\n"
                 "tie_word_embeddings: false\n");
    write_pair(folder.path("a_text_document"), 120, 100);
    write_pair(folder.path("b_text_document"), 60, 500);
  }
  // The losses of a run, which must end well.
  std::vector<double> losses(const Words& words, const std::string& metrics = "metrics.jsonl") const {
    const Outcome outcome = folder.run(words + Words{"--metrics-path", metrics});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<double> all;
    for (const auto& line : folder.metrics(metrics)) all.push_back(line.at("loss"));
    return all;
  }
  std::string refused(const Words& words) const {
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  }

  const ProgramFolder folder;
  const Words run = Words{"train",
                          "--model-config",
                          "tokens.yaml",
                          "--data-path",
                          "a_text_document",
                          "--tokenizer-type",
                          "PretrainedFromHF",
                          "--tokenizer-name-or-path",
                          kTokenizer,
                          "--split",
                          "80,20,0",
                          "--seq-length",
                          "24",
                          "--train-iters",
                          "6",
                          "--lr",
                          "0.01",
                          "--global-batch-size",
                          "4",
                          "--eval-interval",
                          "3",
                          "--eval-iters",
                          "2"} +
                    kSharded;
  const Words masked = {"--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"};
};

TEST_F(TokenData, TheLossIsTheMeanOverTheTokensThatCountWhateverTheRanksAndMicroBatches) {
  const auto whole = losses(run + masked + Words{"--nproc-per-node", "1", "--micro-batch-size", "4"}, "whole.jsonl");
  ASSERT_EQ(whole.size(), 6U);
  EXPECT_LT(whole.back(), whole.front());
  const auto of = folder.metrics("whole.jsonl");
  for (const auto& [ranks, micro_batch] : {std::pair{"1", "1"}, {"2", "2"}, {"2", "1"}, {"4", "1"}}) {
    const auto cut =
        losses(run + masked + Words{"--nproc-per-node", ranks, "--micro-batch-size", micro_batch}, "cut.jsonl");
    ASSERT_EQ(cut.size(), whole.size());
    const auto lines = folder.metrics("cut.jsonl");
    for (std::size_t i = 0; i < cut.size(); ++i) {
      EXPECT_NEAR(cut[i], whole[i], 2e-6 * whole[i])
          << ranks << " ranks, " << micro_batch << " a micro-batch, step " << i;
      EXPECT_NEAR(lines[i].at("grad_norm").get<double>(), of[i].at("grad_norm").get<double>(),
                  1e-5 * of[i].at("grad_norm").get<double>());
    }
    EXPECT_NEAR(lines[2].at("held_out_loss").get<double>(), of[2].at("held_out_loss").get<double>(), 1e-5);
  }
  EXPECT_NE(losses(run + Words{"--nproc-per-node", "1", "--micro-batch-size", "4"}, "plain.jsonl"), whole);
}

TEST_F(TokenData, ModulesThatRunAFewRowsAtATimeKeepPositionsAndSegments) {
  const Words whole_batch = run + masked + Words{"--nproc-per-node", "1", "--micro-batch-size", "4"};
  const auto whole = losses(whole_batch, "whole.jsonl");
  const std::string file = folder.read("fsdp2.yaml");
  for (const char* modules : {"model.layers.{*}", "model.layers.{*}.self_attn", "model"}) {
    for (const char* rows : {"1", "3"}) {
      folder.write("fsdp2.yaml", fmt::format("{}chunk_mbs_modules: [\"{}\"]\nchunk_mbs: {}\n", file, modules, rows));
      const auto chunked = losses(whole_batch, "chunked.jsonl");
      ASSERT_EQ(chunked.size(), whole.size()) << modules;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(chunked[i], whole[i], 2e-6 * whole[i]) << modules << " by " << rows << ", step " << i;
      }
    }
  }
}

TEST_F(TokenData, ARunGoesOnWhereItStoppedToTheBit) {
  const Words saving = run + masked + Words{"--nproc-per-node", "2", "--save-interval", "3"};
  ASSERT_EQ(folder.run(saving + Words{"--save", "whole"}).exit_code, 0);
  ASSERT_EQ(folder.run(saving + Words{"--save", "out", "--exit-interval", "3"}).exit_code, 0);
  ASSERT_EQ(folder.run(saving + Words{"--save", "out", "--load", "out"}).exit_code, 0);
  expect_same_checkpoint(folder.path("out"), folder.path("whole"), 6);
}

TEST_F(TokenData, SeveralPairsAreBlendedByTheirWeights) {
  const Words blend = with_value(run, "--data-path", "0.3");
  Words words = blend;
  words.insert(std::next(std::find(words.begin(), words.end(), "0.3")), {"a_text_document", "0.7", "b_text_document"});
  const Outcome outcome = folder.run(words + Words{"--nproc-per-node", "1", "--data-cache-path", "cache"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("samples of 24 tokens from 2 pairs for train"));
  EXPECT_FALSE(std::filesystem::is_empty(folder.path("cache")));
}

TEST_F(TokenData, PartsMayBePairsOfTheirOwn) {
  Words words = run;
  words.erase(std::find(words.begin(), words.end(), "--split"), std::find(words.begin(), words.end(), "--seq-length"));
  *std::find(words.begin(), words.end(), "--data-path") = "--train-data-path";
  words = words + Words{"--valid-data-path", "b_text_document", "--nproc-per-node", "1"};
  EXPECT_EQ(losses(words).size(), 6U);
  EXPECT_THAT(
      refused(words + Words{"--split", "1,1,0"}),
      HasSubstr("--split is for --data-path, and --train-data-path names the parts themselves; remove one of them"));
  EXPECT_THAT(
      refused(words + Words{"--data-path", "a_text_document"}),
      HasSubstr("--data-path and --train-data-path are both given; keep the first for one data set with --split, "
                "or the others for one each"));
}

TEST_F(TokenData, FlagsOfOtherDataAreRefused) {
  const Words one = {"--nproc-per-node", "1"};
  EXPECT_THAT(
      refused(run + one + Words{"--held-out-fraction", "0.1"}),
      HasSubstr("--held-out-fraction is for text that is read as bytes, and the data is .bin/.idx pairs; remove "
                "it, and write --split"));
  EXPECT_THAT(
      refused(kFourSteps + one + Words{"--split", "1,0,0"}),
      HasSubstr("--split is for .bin/.idx pairs, and --data-path data is read as bytes: there is no data.idx; make "
                "pairs with shardloom preprocess, or remove it"));
  Words mixed = run + one;
  mixed.insert(std::next(std::find(mixed.begin(), mixed.end(), "a_text_document")), "data");
  EXPECT_THAT(refused(mixed),
              HasSubstr("--data-path has a_text_document, of which there are .bin and .idx, and data, a "
                        "file or folder; give pairs of token ids alone, or text alone"));
}

TEST_F(TokenData, ATokenizerThatDoesNotFitIsRefused) {
  const Words one = {"--nproc-per-node", "1"};
  EXPECT_THAT(refused(with_value(run, "--model-config", "model.yaml") + one),
              HasSubstr("the tokenizer in " + kTokenizer + " has ids up to "));
  EXPECT_THAT(
      refused(with_value(run, "--model-config", "model.yaml") + one),
      HasSubstr("but vocab_size of the model is 256; use the model's own tokenizer, or a model with vocab_size: "));
  Words none = run + one + Words{"--eod-mask-loss"};
  none.erase(std::find(none.begin(), none.end(), "--tokenizer-name-or-path"),
             std::find(none.begin(), none.end(), "--split"));
  EXPECT_THAT(refused(none), HasSubstr("--eod-mask-loss needs the id that ends a document, and no tokenizer gives one; "
                                       "give --tokenizer-name-or-path DIR with an eos_token"));
}

TEST_F(TokenData, AnIndexThatLiesIsRefusedWithItsFile) {
  std::string text = folder.read("a_text_document.idx");
  text[40] = 99;  // the length of a sequence
  folder.write("a_text_document.idx", text);
  EXPECT_THAT(refused(run + Words{"--nproc-per-node", "1"}), HasSubstr("a_text_document.idx"));
}

// --- Parts of which --split leaves nothing

// Ten documents: 969,30,1 gives all of them to training.
TEST_F(TokenData, APartOfWhichTheSplitLeavesNothingIsNotEvaluatedAndSaidOnce) {
  write_pair(folder.path("small_text_document"), 10, 100);
  Words words = with_value(run, "--data-path", "small_text_document");
  words.erase(std::find(words.begin(), words.end(), "--split"), std::find(words.begin(), words.end(), "--seq-length"));
  const Outcome outcome = folder.run(words + Words{"--nproc-per-node", "2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err,
            "warning: --split 969,30,1 leaves nothing of --data-path small_text_document for valid and test, since the "
            "data is small; there is no evaluation on valid and test, give it more in --split, or --valid-data-path "
            "and --test-data-path beside --train-data-path\n");
  const auto lines = folder.metrics("metrics.jsonl");
  ASSERT_EQ(lines.size(), 6U);
  for (const auto& line : lines) EXPECT_FALSE(line.contains("held_out_loss"));
  EXPECT_THAT(
      refused(words + Words{"--nproc-per-node", "1", "--skip-train"}),
      HasSubstr("--skip-train evaluates only, but there is no data for it: --split 969,30,1 leaves nothing of "));
}

// The part that was evaluated in training, by itself: with the length of the run, which says which samples those are.
TEST_F(TokenData, SkipTrainNeedsNeitherAScheduleNorAPartForTraining) {
  const Words saving = run + Words{"--nproc-per-node", "1", "--save", "out", "--save-interval", "6"} +
                       Words{"--lr-decay-style", "cosine", "--lr-warmup-iters", "2", "--min-lr", "0.001"};
  ASSERT_EQ(folder.run(saving).exit_code, 0);
  const double trained = folder.metrics("out/metrics.jsonl").back().at("held_out_loss");
  Words words = run + Words{"--nproc-per-node", "1", "--load", "out", "--skip-train", "--metrics-path", "e.jsonl"};
  words.erase(std::find(words.begin(), words.end(), "--lr"),
              std::find(words.begin(), words.end(), "--global-batch-size"));
  const auto held_out = [&](const Words& more) -> double {
    std::filesystem::remove(folder.path("e.jsonl"));
    const Outcome outcome = folder.run(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return folder.metrics("e.jsonl").at(0).at("held_out_loss");
  };
  EXPECT_EQ(held_out(words), trained);
  // A schedule that the run could not have: a warm-up longer than it, another decay.
  EXPECT_EQ(held_out(words + Words{"--lr-warmup-iters", "500", "--lr-decay-style", "WSD"}), trained);
  EXPECT_EQ(held_out(with_value(words, "--split", "0,20,0") + Words{"--lr", "0.5"}) > 0, true);
  Words alone = words;
  alone.erase(std::find(alone.begin(), alone.end(), "--split"), std::find(alone.begin(), alone.end(), "--seq-length"));
  *std::find(alone.begin(), alone.end(), "--data-path") = "--valid-data-path";
  EXPECT_GT(held_out(alone), 0);
}

// --- Steps that count no token

// Ids that are no tokens are padding, and padding does not count.
TEST_F(TokenData, OfIdsThatAreAllMinusOneEndsWithAnError) {
  io::IndexedWriter writer(folder.path("none_text_document"), io::IndexedDtype::kI32);
  for (int document = 0; document < 60; ++document) {
    writer.add_sequence(std::vector<std::int32_t>(20, -1));
    writer.end_document();
  }
  writer.commit();
  const Words none = with_value(run, "--data-path", "none_text_document") + Words{"--nproc-per-node", "2"};
  const Outcome few = folder.run(none);
  EXPECT_EQ(few.exit_code, 1);
  EXPECT_THAT(few.err,
              testing::StartsWith("warning: step 1 counts no token, and has the loss 0 and no gradient: no label "
                                  "of samples 0 to 3 counts\n"));
  EXPECT_THAT(few.err, HasSubstr("warning: step 3: the evaluation counts no token, and has no loss\n"));
  EXPECT_THAT(few.err, HasSubstr("shardloom: the run is done, but none of its 6 steps counted a token, so nothing was "
                                 "learnt; look at the labels of the data (-100 does not count), and whether "
                                 "--seq-length cuts the answers away\n"));
  const Outcome many = folder.run(with_value(none, "--train-iters", "30") + Words{"--save", "out"});
  EXPECT_EQ(many.exit_code, 1);
  EXPECT_THAT(many.err, HasSubstr("steps 1 to 10 count no token, so nothing is learnt; step 10 has samples 36 to 39; "
                                  "nothing is saved, and out keeps what it held; look at the labels of the data"));
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 9U);
}

// --- From files of text or of instructions, by the program alone

TEST_F(TokenData, OfAFolderOfTextFilesIsThreeCommands) {
  const Outcome made =
      folder.run({"preprocess", "--input", "data", "--handler-name", "GeneralPretrainHandler",
                  "--tokenizer-name-or-path", kTokenizer, "--append-eod", "--output-prefix", "corpus"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Words train = with_value(with_value(run, "--data-path", "corpus_text_document"), "--train-iters", "20");
  Words plan = train + masked + Words{"--nproc-per-node", "2", "--device", "h200"};
  plan.front() = "plan";
  const Outcome planned = folder.run(plan);
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("Qwen2ForCausalLM"));
  const auto of = losses(train + masked + Words{"--nproc-per-node", "2", "--save", "out"}, "train.jsonl");
  ASSERT_EQ(of.size(), 20U);
  EXPECT_LT(of.back(), 0.8 * of.front());
  const Outcome text = folder.run({"generate", "out", "--prompt", "3 times", "--max-new-tokens", "4"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, testing::StartsWith("3 times"));
  EXPECT_EQ(folder.read("out/tokenizer.json"), read_file(kTokenizer + "/tokenizer.json"));
}

class Instructions : public TokenData {
 protected:
  // The samples of the references' Alpaca file, none of which has 256 tokens.
  void preprocess(const std::string& prefix, const Words& more = {}) const {
    const Outcome made = folder.run(
        Words{"preprocess", "--input", kAlpaca, "--handler-name", "AlpacaStyleInstructionHandler", "--prompt-type",
              "qwen", "--tokenizer-name-or-path", kTokenizer, "--seq-length", "256", "--output-prefix", prefix} +
        more);
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  // A step on all lines of a data set.
  Words all_of(const std::string& prefix, const std::string& micro_batch_size = "1") const {
    const auto lines = io::IndexedDataset(folder.path(prefix + "_packed_input_ids_document")).sequence_count();
    Words words = with_value(with_value(run, "--data-path", prefix), "--global-batch-size", fmt::to_string(lines));
    words = with_value(with_value(words, "--split", "1,0,0"), "--seq-length", "256");
    return with_value(words, "--train-iters", "1") +
           Words{"--stage", "sft", "--micro-batch-size", micro_batch_size, "--eval-iters", "0", "--no-shuffle"};
  }

  const std::string kAlpaca = LOOM_SOURCE_DIR "/tests/reference/sft/inputs/alpaca.jsonl";
};

// The mean over all answers' tokens does not depend on how samples share lines, rows or ranks.
TEST_F(Instructions, HaveTheLossOfEachSampleAloneHoweverTheyArePacked) {
  preprocess("apart");
  preprocess("packed", {"--pack", "--neat-pack"});
  const Words one = {"--nproc-per-node", "1"};
  const auto apart = losses(all_of("apart") + one, "apart.jsonl");
  ASSERT_EQ(apart.size(), 1U);
  const double norm = folder.metrics("apart.jsonl").front().at("grad_norm");
  const auto expect_same = [&](const Words& words, const std::string& what) {
    const auto other = losses(words, "other.jsonl");
    ASSERT_EQ(other.size(), 1U) << what;
    EXPECT_NEAR(other[0], apart[0], 2e-6 * apart[0]) << what;
    EXPECT_NEAR(folder.metrics("other.jsonl").front().at("grad_norm").get<double>(), norm, 1e-5 * norm) << what;
  };
  expect_same(all_of("packed") + one + Words{"--neat-pack"}, "packed");
  expect_same(all_of("apart") + one + Words{"--variable-seq-lengths"}, "rows of their own lengths");
  const auto lines = io::IndexedDataset(folder.path("packed_packed_input_ids_document")).sequence_count();
  ASSERT_EQ(lines % 2, 0) << "two ranks share the lines";
  expect_same(all_of("packed") + Words{"--neat-pack", "--nproc-per-node", "2"}, "packed, two ranks");
  expect_same(all_of("packed", "2") + one + Words{"--neat-pack"}, "packed, two lines a micro-batch");
  folder.write("fsdp2.yaml", folder.read("fsdp2.yaml") + "chunk_mbs_modules: [\"model.layers.{*}\"]\nchunk_mbs: 1\n");
  expect_same(all_of("packed", "2") + one + Words{"--neat-pack"}, "packed, a line at a time in a layer");
}

TEST_F(Instructions, SeeEachOtherOnlyWhereTheyArePackedWithoutNumbers) {
  preprocess("apart");
  preprocess("mixed", {"--pack"});
  preprocess("packed", {"--pack", "--neat-pack"});
  const Words one = {"--nproc-per-node", "1"};
  const auto apart = losses(all_of("apart") + one), mixed = losses(all_of("mixed") + one, "mixed.jsonl");
  ASSERT_EQ(apart.size(), 1U);
  ASSERT_EQ(mixed.size(), 1U);
  EXPECT_GT(std::abs(mixed[0] - apart[0]), 1e-5);
  EXPECT_THAT(refused(all_of("packed") + one),
              HasSubstr("--data-path packed: attention_mask of line 0 numbers the samples of the line, which would see "
                        "each other; give --neat-pack"));
}

// Labels of a pair, from its first line on, become -100.
void forget_labels(const std::filesystem::path& prefix, std::int64_t lines) {
  const io::IndexedDataset pair(prefix);
  std::int64_t tokens = 0;
  for (std::int64_t line = 0; line < lines; ++line) tokens += pair.length(line);
  const std::string path = prefix.string() + ".bin";
  std::string bytes = read_file(path);
  const std::vector<std::int32_t> none(static_cast<std::size_t>(tokens), -100);
  ASSERT_LE(tokens * 4, std::ssize(bytes));
  std::memcpy(bytes.data(), none.data(), none.size() * 4);
  write_file(path, bytes);
}

TEST_F(Instructions, WithoutLabelsAreWarnedOfWithTheLineAndFailWhereAllAre) {
  preprocess("apart");
  const auto lines = io::IndexedDataset(folder.path("apart_packed_labels_document")).sequence_count();
  const Words each =
      with_value(with_value(all_of("apart"), "--global-batch-size", "1"), "--train-iters", fmt::to_string(lines)) +
      Words{"--nproc-per-node", "1"};
  forget_labels(folder.path("apart_packed_labels_document"), 1);
  const Outcome one = folder.run(each);
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(one.err,
            "warning: step 1 counts no token, and has the loss 0 and no gradient: no label of sample 0 (line 0 of "
            "apart) counts\n");
  EXPECT_EQ(folder.metrics("metrics.jsonl").size(), static_cast<std::size_t>(lines));
  forget_labels(folder.path("apart_packed_labels_document"), lines);
  const Outcome all = folder.run(with_value(each, "--train-iters", "3"));
  EXPECT_EQ(all.exit_code, 1);
  EXPECT_THAT(all.err, HasSubstr("none of its 3 steps counted a token, so nothing was learnt"));
}

TEST_F(Instructions, NeedTheirStageAndTheirFlags) {
  preprocess("apart");
  Words words = all_of("apart") + Words{"--nproc-per-node", "1"};
  words.erase(std::find(words.begin(), words.end(), "--no-shuffle"));
  Words without = words;
  const auto stage = std::find(without.begin(), without.end(), "--stage");
  without.erase(stage, stage + 2);
  EXPECT_THAT(refused(without),
              HasSubstr("apart names samples for fine-tuning: there is "
                        "apart_packed_input_ids_document.idx; add --stage sft, or give the prefix of a "
                        "pair of token ids"));
  EXPECT_THAT(refused(run + Words{"--nproc-per-node", "1", "--neat-pack"}),
              HasSubstr("--neat-pack is for samples for fine-tuning; add --stage sft, or remove it"));
  EXPECT_THAT(refused(words + Words{"--no-cut-token", "--cut-max-seqlen"}),
              HasSubstr("--no-cut-token and --cut-max-seqlen are both given; keep one"));
  Words two = words;
  two.insert(std::next(std::find(two.begin(), two.end(), "apart")), "b");
  EXPECT_THAT(refused(two),
              HasSubstr("--data-path has 2 words; samples for fine-tuning come from one prefix: merge them "
                        "with shardloom preprocess --merge-group-keys"));
  std::filesystem::remove(folder.path("apart_packed_labels_document.bin"));
  EXPECT_THAT(refused(words), HasSubstr("apart_packed_labels_document"));
}

// --- Preferences

class Preferences : public TokenData {
 protected:
  Preferences() {
    const Outcome made =
        folder.run({"preprocess", "--input", LOOM_SOURCE_DIR "/tests/reference/sft/inputs/pair_alpaca.jsonl",
                    "--handler-name", "AlpacaStylePairwiseHandler", "--prompt-type", "qwen", "--tokenizer-name-or-path",
                    kTokenizer, "--output-prefix", "pairs"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(folder.run(run + Words{"--nproc-per-node", "1", "--save", "base"}).exit_code, 0);
  }
  Words stage(const std::string& name) const {
    Words words = with_value(with_value(run, "--data-path", "pairs"), "--split", "1,0,0");
    words = with_value(with_value(words, "--seq-length", "128"), "--lr", "0.001");
    *std::find(words.begin(), words.end(), "--model-config") = "--init-from-hf-path";
    *std::find(words.begin(), words.end(), "tokens.yaml") = "base";
    return words + Words{"--stage", name, "--eval-iters", "0", "--micro-batch-size", "1"};
  }
};

// Policy and reference are equal before the first update: the loss is ln 2, and no answer is preferred.
TEST_F(Preferences, BeginAtLn2AndLearnTheSameOnAnyNumberOfRanks) {
  const auto one = losses(stage("dpo") + Words{"--nproc-per-node", "1"}, "one.jsonl");
  ASSERT_EQ(one.size(), 6U);
  EXPECT_NEAR(one[0], std::log(2.0), 1e-6);
  EXPECT_NE(one[1], one[0]);
  const auto first = folder.metrics("one.jsonl").front().at("reports");
  EXPECT_NEAR(first.at("rewards/chosen").get<double>(), 0, 1e-6);
  EXPECT_TRUE(first.contains("rewards/accuracies") && first.contains("rewards/margins"));
  for (const char* ranks : {"2", "4"}) {
    const auto other = losses(stage("dpo") + Words{"--nproc-per-node", ranks}, "other.jsonl");
    ASSERT_EQ(other.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i], one[i], 1e-5) << ranks << " ranks, step " << i;
  }
  // The steps lead away from the reference: the run that goes on from a saved one measures from the same reference.
  const Words saving = stage("dpo") + Words{"--nproc-per-node", "2", "--save", "out", "--save-interval", "3"};
  ASSERT_EQ(folder.run(saving + Words{"--exit-interval", "3"}).exit_code, 0);
  ASSERT_EQ(folder.run(saving + Words{"--load", "out"}).exit_code, 0);
  const auto resumed = folder.metrics("out/metrics.jsonl");
  ASSERT_EQ(resumed.size(), one.size());
  EXPECT_NEAR(resumed.back().at("loss").get<double>(), one.back(), 1e-5);
}

TEST_F(Preferences, WithoutLabelsTeachNothingAndEndWithAnError) {
  for (const char* key : {"chosen_labels", "rejected_labels"}) {
    const auto prefix = folder.path(fmt::format("pairs_packed_{}_document", key));
    forget_labels(prefix, io::IndexedDataset(prefix).sequence_count());
  }
  const Outcome outcome = folder.run(stage("dpo") + Words{"--nproc-per-node", "1"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("none of its 6 steps counted a token"));
}

// What the loss function reports stands beside the loss, in the lines of steps and of evaluations.
TEST_F(Preferences, SayTheirFiguresInTheLinesOfStepsAndOfEvaluations) {
  const Words words = with_value(stage("dpo"), "--split", "1,1,0") +
                      Words{"--eval-iters", "1", "--nproc-per-node", "1", "--log-interval", "1"};
  const Outcome outcome = folder.run(words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto last = folder.metrics("metrics.jsonl").back();
  EXPECT_THAT(outcome.out, HasSubstr(fmt::format(
                               "step 6/6  loss {:.4f}  rewards/chosen {:.4f}  rewards/rejected {:.4f}",
                               last.at("loss").get<double>(), last.at("reports").at("rewards/chosen").get<double>(),
                               last.at("reports").at("rewards/rejected").get<double>())));
  EXPECT_THAT(outcome.out, HasSubstr(fmt::format("step 6: held-out loss {:.4f} a pair, rewards/chosen {:.4f}, ",
                                                 last.at("held_out_loss").get<double>(),
                                                 last.at("held_out_reports").at("rewards/chosen").get<double>())));
  EXPECT_EQ(last.at("held_out_reports").size(), last.at("reports").size());
}

TEST_F(Preferences, OfSimPOHaveNoReference) {
  const auto of = losses(stage("simpo") + Words{"--nproc-per-node", "2"});
  ASSERT_EQ(of.size(), 6U);
  EXPECT_GT(of[0], std::log(2.0));  // a margin is asked for
  const Outcome other = folder.run(stage("simpo") + Words{"--nproc-per-node", "2", "--ref-model", "base"});
  EXPECT_THAT(other.err, HasSubstr("--ref-model is of --stage dpo; add that, or remove it"));
}

TEST_F(Preferences, TakeAnotherModelAsReference) {
  Words fresh = stage("dpo") + Words{"--nproc-per-node", "2", "--ref-model", "base"};
  *std::find(fresh.begin(), fresh.end(), "--init-from-hf-path") = "--model-config";
  *std::find(fresh.begin(), fresh.end(), "base") = "tokens.yaml";
  const auto of = losses(fresh);
  ASSERT_EQ(of.size(), 6U);
  EXPECT_GT(std::abs(of[0] - std::log(2.0)), 1e-5);
}

TEST_F(Preferences, SayWhatDoesNotFit) {
  const Words one = {"--nproc-per-node", "1"};
  EXPECT_THAT(refused(stage("dpo") + one + Words{"--simpo-beta", "2"}),
              HasSubstr("--simpo-beta is of --stage simpo; add that, or remove it"));
  EXPECT_THAT(refused(stage("sft") + one), HasSubstr("pairs_packed_input_ids_document.bin is not there"));
  EXPECT_THAT(refused(stage("dpo") + one + Words{"--dpo-label-smoothing", "0.5"}),
              HasSubstr("--dpo-label-smoothing is 0.5; use a number from 0 to below 0.5"));
  EXPECT_THAT(refused(stage("dpo") + one + Words{"--neat-pack"}),
              HasSubstr("--neat-pack is of --stage sft and prm: pairs are not packed; remove it"));
  const Outcome longer = folder.run(with_value(stage("dpo"), "--seq-length", "16") + one);
  EXPECT_EQ(longer.exit_code, 2);
  EXPECT_THAT(longer.err, HasSubstr("more than --seq-length 16, and is not cut; give --variable-seq-lengths, or "
                                    "preprocess with this --seq-length"));
  std::filesystem::remove(folder.path("pairs_packed_rejected_labels_document.idx"));
  EXPECT_THAT(refused(stage("dpo") + one), HasSubstr("pairs_packed_rejected_labels_document"));
}

TEST_F(TokenData, TheSavedModelHasTheTokenizer) {
  ASSERT_EQ(folder.run(run + Words{"--nproc-per-node", "1", "--save", "out"}).exit_code, 0);
  EXPECT_EQ(folder.read("out/tokenizer.json"), read_file(kTokenizer + "/tokenizer.json"));
}

}  // namespace
}  // namespace loom::test
