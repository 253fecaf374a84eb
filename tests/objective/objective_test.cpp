// Promise: every stage of --stage has one row, from which loaders, forward and unit follow; a rank's objective gives
//          the forward the chunk of the loss, and what its auxiliary says of a batch: values by the numbers of samples,
//          or those of a frozen model.
// World:   one rank; batches of two tokens; a model of logits that are its table.
#include "engine/objective/objective.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"

namespace loom::objective {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> stages_with(bool (*holds)(const StageRow&)) {
  std::vector<std::string> words;
  for (const StageRow& row : stage_rows()) {
    if (holds(row)) words.emplace_back(row.word);
  }
  return words;
}

TEST(Stages, HaveARowEachAndTheNextTokenOneToo) {
  EXPECT_THAT(stages_with([](const StageRow&) { return true; }), ElementsAre("", "sft", "dpo", "simpo", "orm", "prm"));
  for (const StageRow& row : stage_rows()) EXPECT_EQ(&row_of(row.stage), &row);
}

TEST(Stages, DifferByTheirProperties) {
  EXPECT_THAT(stages_with([](const StageRow& row) { return row.has_pairs; }), ElementsAre("dpo", "simpo", "orm"));
  EXPECT_THAT(stages_with([](const StageRow& row) { return row.has_preference; }), ElementsAre("dpo", "simpo"));
  EXPECT_THAT(stages_with([](const StageRow& row) { return row.has_reference; }), ElementsAre("dpo"));
  EXPECT_THAT(stages_with([](const StageRow& row) { return row.takes_chunks; }), ElementsAre("", "sft"));
  EXPECT_THAT(stages_with([](const StageRow& row) { return row.head == Head::kScores; }), ElementsAre("orm"));
}

TEST(Stages, TakeTheOptionsOfTheirPreference) {
  const ObjectiveOptions options;
  for (const StageRow& row : stage_rows()) {
    if (!row.has_preference) continue;
    EXPECT_EQ((options.*row.preference).simpo, row.stage == Stage::kSimpo);
    EXPECT_EQ((options.*row.preference).has_reference(), row.has_reference);
  }
}

TEST(Stages, HaveAUnitOfTheirLoss) {
  data::DataOptions data;
  EXPECT_EQ(unit_of(row_of({}), data), "nats per byte");
  data.is_instruction_dataset = true;
  EXPECT_EQ(unit_of(row_of(Stage::kSft), data), "nats per token");
  EXPECT_EQ(unit_of(row_of(Stage::kDpo), data), "a pair");
  EXPECT_EQ(unit_of(row_of(Stage::kPrm), data), "nats per label");
}

TEST(Stages, WithoutDataHaveBatchesOfShapes) {
  const std::vector<std::int64_t> samples{0, 1, 2};
  data::DataOptions data;
  data.seq_length = 8;
  for (const auto& [stage, rows] : {std::pair{Stage::kSft, 3}, {Stage::kDpo, 6}}) {
    const data::Batch batch = loaders_of(row_of(stage), data, {}, {}).train(samples);
    for (const char* name : {"input_ids", "targets"}) {
      EXPECT_EQ(batch[name].shape(), Shape({rows, 8}));
      EXPECT_TRUE(batch[name].is_meta());
    }
  }
}

// --- on a rank

// Logits of token i are row i of the table.
class Table final : public nn::Module {
 public:
  Table() : embed_(register_module("embed", std::make_shared<nn::Embedding>(2, 2, 1.0))) {
    for (auto& [path, slot] : named_slots()) slot->value = Tensor::from(std::vector<float>{0, 1, 2, 0}, {2, 2});
  }
  std::string_view type_name() const override { return "Table"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return embed_(args.tensor(0)); }

 private:
  nn::Child<nn::Embedding> embed_;
};

data::Batch two_answers() {
  return {{{"input_ids", Tensor::from(std::vector<std::int32_t>{0, 1}, {2, 1})},
           {"targets", Tensor::from(std::vector<std::int32_t>{1, 1}, {2, 1})},
           {"numbers", nn::ValueList{std::int64_t{2}, std::int64_t{0}}}}};
}

// What a forward step finds.
struct Found {
  std::int64_t loss_chunk_size = 0;
  std::vector<double> log_probs;
};

class OnARank : public ::testing::Test {
 protected:
  Found forward(const RankObjective& on_rank, data::Batch batch) {
    data::DataIterator data(std::move(batch));
    on_rank.forward(data, *model);
    return found;
  }

  test::OneRank rank;
  std::shared_ptr<nn::Module> model = std::make_shared<Table>();
  Found found;
  Objective objective{.forward_step = [this](data::DataIterator& data, nn::Module&) -> data::ForwardResult {
    found.loss_chunk_size = data.loss_chunk_size();
    found.log_probs = reference_log_probs(data.next());
    return {};
  }};
};

TEST_F(OnARank, TheForwardGetsTheChunkOfTheLoss) {
  objective.loss_chunk_size = 16;
  objective.forward_step = [this](data::DataIterator& data, nn::Module&) -> data::ForwardResult {
    found.loss_chunk_size = data.loss_chunk_size();
    return {};
  };
  EXPECT_EQ(forward(RankObjective(objective), two_answers()).loss_chunk_size, 16);
}

TEST_F(OnARank, ValuesAreLookedUpByTheNumbersOfABatch) {
  RankObjective on_rank(objective);
  on_rank.set_auxiliary(ReferenceLogProbs{{-1, -2, -3}, {-4, -5, -6}});
  EXPECT_EQ(forward(on_rank, two_answers()).log_probs, (std::vector<double>{-3, -1, -6, -4}));
}

TEST_F(OnARank, AModelIsRunOnTheBatchWithoutATape) {
  RankObjective on_rank(objective);
  on_rank.set_auxiliary(model);
  const std::vector<double> log_probs = forward(on_rank, two_answers()).log_probs;
  ASSERT_EQ(log_probs.size(), 2U);
  EXPECT_NEAR(log_probs[0], -std::log(1 + std::exp(-1.0)), 1e-6);  // logits 0 and 1, and the target is the second
  EXPECT_NEAR(log_probs[1], -std::log(1 + std::exp(2.0)), 1e-6);   // 2 and 0
}

TEST(OnADryRank, BatchesOfShapesHaveZeros) {
  const test::OneRank rank({.dry_run = true});
  const data::Batch shapes{{{"input_ids", Tensor::meta({4, 8}, DType::kI32, "input_ids")}}};
  EXPECT_EQ(reference_log_probs(data::to_device(shapes)), std::vector<double>(4));
}

TEST_F(OnARank, ALossWithoutItsAuxiliaryIsRefused) {
  EXPECT_EQ(test::message_of<ConfigError>([&] { forward(RankObjective(objective), two_answers()); }),
            "there is neither a reference model nor its log-probabilities; set has_reference_model in "
            "PretrainCallbacks, or give --ref-logps-cache and number the samples (DataLoaders::numbered)");
}

}  // namespace
}  // namespace loom::objective
