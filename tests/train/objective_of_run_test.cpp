// Promise: a program's callbacks and flags make one objective: its forward, told the chunk of the loss, and a frozen
//          second model of its provider where it wants one.
// World:   the tiny model on two ranks.
#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

class ObjectiveOfARun : public TinyTrainers {
 protected:
  // Rows of one token; the loss is a mean over both ranks' rows.
  ObjectiveOfARun() {
    callbacks.train_valid_test_datasets_provider = [](const TrainArguments&) {
      return data::DataLoaders{.train = [](std::span<const std::int64_t> samples) {
        const data::Batch batch = batch_of(samples);
        const Shape shape{static_cast<std::int64_t>(samples.size()), 1};
        return data::Batch{
            {{"input_ids", ops::reshape(batch["ids"], shape)}, {"targets", ops::reshape(batch["targets"], shape)}}};
      }};
    };
  }
};

TEST_F(ObjectiveOfARun, NeedsNumberedSamplesForStoredLogProbs) {
  arguments.objective.ref_logps_cache = "logps";
  EXPECT_EQ(test::message_of<ConfigError>([&] { on_each_rank([](int, Trainer&) {}); }),
            "--ref-logps-cache logps: the data's samples have no numbers; set DataLoaders::numbered");
}

TEST_F(ObjectiveOfARun, TellsTheForwardTheChunkOfTheLoss) {
  arguments.objective.loss_chunk_size = 32;
  std::atomic<std::int64_t> chunk = 0;
  callbacks.forward_step = [&](data::DataIterator& data, nn::Module& model) {
    chunk = data.loss_chunk_size();
    const data::Batch batch = data.next();
    return data::ForwardResult{model(batch["input_ids"]), [targets = batch["targets"]](const nn::Value& logits) {
                                 return ops::cross_entropy(logits, targets);
                               }};
  };
  on_each_rank([](int, Trainer& trainer) { trainer.step(); });
  EXPECT_EQ(chunk, 32);
}

TEST_F(ObjectiveOfARun, KeepsItsReferenceModelAsItWas) {
  callbacks.has_reference_model = true;
  arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 8;
  std::array<std::vector<double>, kRanks> differences;
  callbacks.forward_step = [&](data::DataIterator& data, nn::Module& model) {
    const data::Batch batch = data.next();
    const std::vector<double> reference = objective::reference_log_probs(batch);
    const Tensor logits = model(batch["input_ids"]);
    const auto own = ops::sequence_log_probs(logits, batch["targets"]).to_vector<double>();
    double sum = 0;
    for (std::size_t i = 0; i < own.size(); ++i) sum += std::abs(own[i] - reference[i]);
    differences[static_cast<std::size_t>(RankContext::current().rank())].push_back(sum);
    return data::ForwardResult{
        logits, [targets = batch["targets"]](const nn::Value& output) { return ops::cross_entropy(output, targets); }};
  };
  on_each_rank([](int, Trainer& trainer) {
    for (int i = 0; i < 8; ++i) trainer.step();
  });
  for (const auto& rank : differences) {
    ASSERT_EQ(rank.size(), 16U) << "two micro-batches a step";
    EXPECT_EQ(rank[0], 0) << "the model starts from the reference";
    EXPECT_EQ(rank[1], 0);
    EXPECT_GT(rank[14], 0.1) << "and leaves it";
  }
}

}  // namespace
}  // namespace loom::train
