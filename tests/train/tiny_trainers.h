// A model of 100 numbers that learns token -> (3 token + 1) mod 8, and trainers of it on two ranks as threads.
#pragma once

#include <functional>
#include <gtest/gtest.h>
#include <memory>

#include "engine/launch/run_ranks.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "tests/support/files.h"

namespace loom::train {

inline constexpr std::int64_t kVocab = 8;
inline constexpr int kRanks = 2;

class TinyLm final : public nn::Module {
 public:
  explicit TinyLm(double dropout = 0)
      : embed_(register_module("embed", std::make_shared<nn::Embedding>(kVocab, 4, 0.5))),
        norm_(register_module("norm", std::make_shared<nn::RMSNorm>(4, 1e-6))),
        head_(register_module("head", std::make_shared<nn::Linear>(4, kVocab, true, 0.5))),
        dropout_(register_module("dropout", std::make_shared<nn::Dropout>(dropout))) {}
  std::string_view type_name() const override { return "TinyLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return head_(dropout_(norm_(embed_(args.tensor(0))))); }

 private:
  nn::Child<nn::Embedding> embed_;
  nn::Child<nn::RMSNorm> norm_;
  nn::Child<nn::Linear> head_;
  nn::Child<nn::Dropout> dropout_;
};

inline data::Batch batch_of(std::span<const std::int64_t> samples) {
  const Shape shape{static_cast<std::int64_t>(samples.size())};
  const Tensor ids = Tensor::host(shape, DType::kI64, "ids"), targets = Tensor::host(shape, DType::kI64, "targets");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ids.data<std::int64_t>()[i] = samples[i] * samples[i] % kVocab;  // batches differ from step to step
    targets.data<std::int64_t>()[i] = (3 * samples[i] + 1) % kVocab;
  }
  return {{{"ids", ids}, {"targets", targets}}};
}

inline data::ForwardResult forward_step(data::DataIterator& data, nn::Module& model) {
  const data::Batch batch = data.next();
  return {model(batch["ids"]),
          [targets = batch["targets"]](const nn::Value& logits) { return ops::cross_entropy(logits, targets); }};
}

class TinyTrainers : public ::testing::Test {
 protected:
  TinyTrainers() {
    arguments.launch.ranks = kRanks;
    arguments.schedule.micro_batch_size = 2;
    arguments.schedule.global_batch_size = 8;
    arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 4;
    arguments.schedule.lr = 0.1;
    arguments.parallel.use_torch_fsdp2 = true;
    arguments.parallel.fsdp2_config_path = test::write_file(
        test::fresh_folder() / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\n");
  }

  void on_each_rank(const std::function<void(int rank, Trainer& trainer)>& run) {
    const TrainingInputs inputs = read_inputs(arguments, callbacks);
    launch::run_ranks(kRanks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, rank_setup(arguments));
      Trainer trainer(arguments, callbacks, inputs, world);
      run(context.rank(), trainer);
    });
  }

  TrainSections arguments;
  PretrainCallbacks callbacks{
      .train_valid_test_datasets_provider = [](const TrainArguments&) { return data::DataLoaders{.train = batch_of}; },
      .model_provider = [](const TrainArguments&) { return std::make_shared<TinyLm>(); },
      .forward_step = forward_step};
};

}  // namespace loom::train
