// Promise: a file of reference log-probabilities is read where it is of these weights and these samples, bit for bit;
//          otherwise it is refused with everything that differs, and broken files are refused by what is broken.
// World:   files of three pairs; the tiny model on two ranks.
#include "engine/train/reference_log_probs.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>
#include <span>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/train/reference_model.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::HasSubstr;

class ReferenceFile : public ::testing::Test {
 protected:
  ReferenceFile() { write_reference_log_probs(file, facts, values); }
  std::string refused(const ReferenceFacts& by) const {
    return test::message_of<ConfigError>([&] { read_reference_log_probs(file, by); });
  }

  const std::filesystem::path file = test::fresh_folder() / "logps.safetensors";
  const ReferenceFacts facts{.weights = "00ff",
                             .weights_at = "base",
                             .data = "0123",
                             .data_at = "pairs",
                             .pairs = 3,
                             .seq_length = 128,
                             .cut = "none",
                             .dtype = "fp32"};
  const ReferenceLogProbs values{{-1.0 / 3, -2e-300, 0}, {-12.5, -1e6, std::nextafter(-1, 0)}};
};

TEST_F(ReferenceFile, KeepsEveryBit) {
  const ReferenceLogProbs read = read_reference_log_probs(file, facts);
  EXPECT_EQ(read.chosen, values.chosen);
  EXPECT_EQ(read.rejected, values.rejected);
  ReferenceFacts moved = facts;
  moved.weights_at = "elsewhere/base";
  moved.data_at = "elsewhere/pairs";
  EXPECT_EQ(read_reference_log_probs(file, moved).chosen, values.chosen) << "names of places are not compared";
}

TEST_F(ReferenceFile, IsRefusedWithEverythingThatDiffers) {
  ReferenceFacts other = facts;
  other.weights = "abcd";
  other.weights_at = "tuned";
  other.seq_length = 64;
  EXPECT_EQ(refused(other),
            fmt::format("--ref-logps-cache {}: its log-probabilities were computed from something else: the reference "
                        "weights: 00ff of base there, abcd of tuned here; --seq-length: 128 there, 64 here; give "
                        "another name, or remove the file so that it is computed anew",
                        file.string()));
  other = facts;
  other.data = "4567";
  EXPECT_THAT(refused(other), HasSubstr("the data: 0123 of pairs there, 4567 of pairs here"));
  other = facts;
  other.cut = "end";
  EXPECT_THAT(refused(other), HasSubstr("the cut of longer answers: none there, end here"));
  other = facts;
  other.dtype = "bf16";
  EXPECT_THAT(refused(other), HasSubstr("the type of the computation: fp32 there, bf16 here"));
  other = facts;
  other.pairs = 4;
  EXPECT_THAT(refused(other), HasSubstr("the number of pairs: 3 there, 4 here"));
}

TEST_F(ReferenceFile, IsRefusedWhereItIsBroken) {
  const auto metadata = io::SafetensorsFile(file).metadata();
  const auto write = [&](const std::vector<double>& chosen, const std::map<std::string, std::string>& said) {
    const auto tensor = [](const char* name, const std::vector<double>& numbers) {
      return io::TensorToWrite{name, DType::kF64, Shape{static_cast<std::int64_t>(numbers.size())},
                               std::as_bytes(std::span(numbers))};
    };
    io::write_safetensors(file, {tensor("chosen", chosen), tensor("rejected", values.rejected)}, said);
  };
  write({-1, -2}, metadata);
  EXPECT_THAT(refused(facts), HasSubstr("'chosen' is fp64 [2], and fp64 [3] is needed; remove the file so that it is "
                                        "computed anew"));
  write({-1, std::numeric_limits<double>::quiet_NaN(), -1}, metadata);
  EXPECT_THAT(refused(facts), HasSubstr("'chosen' of pair 1 is nan; remove the file"));
  write(values.chosen, {{"format", "pt"}});
  EXPECT_THAT(refused(facts), HasSubstr("the file is none of reference log-probabilities; give a name of its own, or "
                                        "one that is not there yet"));
  const std::string whole = test::read_file(file);
  test::write_file(file, whole.substr(0, whole.size() - 8));
  EXPECT_THAT(refused(facts), HasSubstr("logps.safetensors"));
  test::write_file(file, "no safetensors");
  EXPECT_THAT(refused(facts), HasSubstr("logps.safetensors"));
}

// --- who asks without anything to answer

TEST(ReferenceLogProbsOfARank, AreMissedByWhatGivesThem) {
  const test::OneRank rank;
  const data::Batch batch{{{"input_ids", Tensor::from(std::vector<std::int32_t>{1, 2}, {1, 2})}}};
  EXPECT_EQ(test::message_of<ConfigError>([&] { reference_log_probs(batch); }),
            "there is neither a reference model nor its log-probabilities; set has_reference_model in "
            "PretrainCallbacks, or give --ref-logps-cache and number the samples (DataLoaders::numbered)");
}

TEST(ReferenceLogProbsOfARank, AreThoseOfTheNumbersOfABatch) {
  const test::OneRank rank;
  set_reference_log_probs(std::make_shared<const ReferenceLogProbs>(ReferenceLogProbs{{-1, -2, -3}, {-4, -5, -6}}));
  const data::Batch batch{{{"numbers", nn::ValueList{std::int64_t{2}, std::int64_t{0}}}}};
  EXPECT_EQ(reference_log_probs(batch), (std::vector<double>{-3, -1, -6, -4}));
}

class ReferenceOfARun : public TinyTrainers {};

TEST_F(ReferenceOfARun, NeedsNumberedSamples) {
  arguments.objective.ref_logps_cache = "logps";
  EXPECT_EQ(test::message_of<ConfigError>([&] { on_each_rank([](int, Trainer&) {}); }),
            "--ref-logps-cache logps: the data's samples have no numbers; set DataLoaders::numbered");
}

}  // namespace
}  // namespace loom::train
