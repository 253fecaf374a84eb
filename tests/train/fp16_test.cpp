// Promise: an fp16 run follows the fp32 curve, since its loss is scaled; an overflow on any rank leaves out the update
//          on all of them, lowers the scale, and is an error only where the scale cannot fall.
// World:   2 ranks as threads, parameters gathered and gradients reduced in fp16.
#include <cmath>
#include <cstring>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

constexpr double k2To32 = 4294967296.0;
using Weights = std::vector<std::vector<float>>;

Weights weights_of(Trainer& trainer) {
  Weights weights;
  for (const Tensor& parameter : trainer.model().parameters()) weights.push_back(parameter.to_vector<float>());
  return weights;
}

class Fp16 : public TinyTrainers {
 protected:
  Fp16() {
    arguments.optimizer.fp16 = true;
    shard("[embed, head]");
  }

  void shard(const std::string& modules) {
    arguments.parallel.fsdp2_config_path =
        test::write_file(test::fresh_folder() / "fsdp2.yaml",
                         "sharding_size: auto\nparam_dtype: fp16\nsub_modules_to_wrap: " + modules + "\n");
  }

  // The loss of `rank` is 1e30 times as large in iteration `iteration`.
  void overflow_on(int rank, std::int64_t iteration) {
    callbacks.forward_step = [=](data::DataIterator& data, nn::Module& model) {
      const data::Batch batch = data.next();
      const std::int64_t first = batch["samples"].to_vector<std::int64_t>().front();
      const bool here = RankContext::current().rank() == rank && first / 8 + 1 == iteration;
      return data::ForwardResult{model(batch["ids"]), [=, targets = batch["targets"]](const nn::Value& logits) {
                                   return ops::scale(ops::cross_entropy(logits, targets), here ? 1e30 : 1.0);
                                 }};
    };
    callbacks.train_valid_test_datasets_provider = [](const TrainArguments&) {
      return data::DataLoaders{.train = [](std::span<const std::int64_t> samples) {
        data::Batch batch = batch_of(samples);
        const Tensor numbers = Tensor::host({std::ssize(samples)}, DType::kI64, "samples");
        std::ranges::copy(samples, numbers.data<std::int64_t>());
        batch.values.emplace_back("samples", numbers);
        return batch;
      }};
    };
  }
};

TEST_F(Fp16, AScaleThatIsTooLargeIsHalvedUntilItFits) {
  arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 100;
  on_each_rank([&](int, Trainer& trainer) {
    const Weights before = weights_of(trainer);
    const double first_lr = trainer.schedule_state().max_lr;
    double scale = k2To32;
    int skipped = 0;
    StepMetrics metrics = trainer.step();
    for (; metrics.skipped && skipped < 50; metrics = trainer.step()) {
      ++skipped;
      if (skipped > 1) scale /= 2;  // the hysteresis is 2
      ASSERT_EQ(metrics.loss_scale, scale);
      ASSERT_FALSE(std::isfinite(metrics.grad_norm));
      ASSERT_TRUE(std::isfinite(metrics.loss));
      ASSERT_EQ(metrics.step, skipped);
      ASSERT_EQ(metrics.samples_consumed, 8 * skipped);
      ASSERT_EQ(metrics.next_lr, first_lr);
      ASSERT_EQ(trainer.state().schedule_samples, 0);
      ASSERT_EQ(trainer.state().loss_scale->scale, scale);
      ASSERT_EQ(weights_of(trainer), before);
    }
    EXPECT_GE(skipped, 3);
    EXPECT_LT(skipped, 50);
    EXPECT_EQ(metrics.lr, first_lr);
    EXPECT_EQ(metrics.loss_scale, scale);
    EXPECT_TRUE(metrics.loss_is_scaled);
    EXPECT_TRUE(std::isfinite(metrics.grad_norm));
    EXPECT_LT(metrics.grad_norm, 100) << "the scale is taken out";
    EXPECT_EQ(trainer.state().schedule_samples, 8);
    EXPECT_EQ(trainer.state().loss_scale->growth_tracker, 1);
    EXPECT_NE(weights_of(trainer), before);
  });
}

TEST_F(Fp16, AnOverflowOnOneRankLeavesTheUpdateOutOnAll) {
  arguments.optimizer.loss_scale.initial = 1024;
  for (const int bad_rank : {0, 1}) {
    overflow_on(bad_rank, 2);
    on_each_rank([&](int, Trainer& trainer) {
      EXPECT_FALSE(trainer.step().skipped);
      const Weights after_one = weights_of(trainer);
      EXPECT_TRUE(trainer.step().skipped);
      EXPECT_EQ(weights_of(trainer), after_one);
      EXPECT_EQ(trainer.state().loss_scale,
                (LossScaleState{.scale = 1024, .growth_tracker = 0, .hysteresis_tracker = 1}));
      EXPECT_FALSE(trainer.step().skipped);
      EXPECT_NE(weights_of(trainer), after_one);
    });
  }
}

TEST_F(Fp16, TheWindowDoublesTheScale) {
  arguments.optimizer.loss_scale.initial = 64;
  arguments.optimizer.loss_scale.window = 2;
  on_each_rank([&](int, Trainer& trainer) {
    EXPECT_EQ(trainer.step().loss_scale, 64);
    EXPECT_EQ(trainer.step().loss_scale, 128);
    EXPECT_EQ(trainer.step().loss_scale, 128);
  });
}

TEST_F(Fp16, TwoAndTwoStepsAreFourSteps) {
  arguments.optimizer.loss_scale.initial = 64;
  arguments.optimizer.loss_scale.window = 3;
  overflow_on(1, 2);
  std::vector<Weights> whole(kRanks), parts(kRanks);
  std::vector<nn::StateDict> models(kRanks);
  std::vector<nn::OptimizerState> optimizers(kRanks);
  std::vector<TrainState> states(kRanks);
  const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
  on_each_rank([&](int rank, Trainer& trainer) {
    for (int step = 0; step < 4; ++step) trainer.step();
    whole[at(rank)] = weights_of(trainer);
    EXPECT_EQ(trainer.state().schedule_samples, 24);
  });
  on_each_rank([&](int rank, Trainer& trainer) {
    for (int step = 0; step < 2; ++step) trainer.step();
    models[at(rank)] = nn::host_copies(sharding::local_state_dict(trainer.sharded_module()));
    optimizers[at(rank)] = nn::host_copies(trainer.optimizer().state_dict());
    states[at(rank)] = trainer.state();
  });
  EXPECT_EQ(states[0].loss_scale->hysteresis_tracker, 1);
  on_each_rank([&](int rank, Trainer& trainer) {
    nn::load_state_dict(trainer.sharded_module(), models[at(rank)]);
    trainer.optimizer().load_state_dict(optimizers[at(rank)]);
    trainer.set_state(states[at(rank)]);
    for (int step = 2; step < 4; ++step) trainer.step();
    parts[at(rank)] = weights_of(trainer);
  });
  EXPECT_EQ(parts, whole);
}

TEST_F(Fp16, AStateWithoutScaleBeginsWithTheFirst) {
  on_each_rank([&](int, Trainer& trainer) {
    trainer.set_state({.step = 1, .samples_consumed = 8, .seed = arguments.data.seed});
    EXPECT_EQ(trainer.state().loss_scale->scale, k2To32);
  });
  arguments.optimizer.fp16 = false;
  on_each_rank([&](int, Trainer& trainer) {
    trainer.set_state(
        {.step = 1, .samples_consumed = 8, .seed = arguments.data.seed, .loss_scale = LossScaleState{8, 0, 1}});
    EXPECT_EQ(trainer.state().loss_scale, std::nullopt) << "this run scales nothing";
    const StepMetrics metrics = trainer.step();
    EXPECT_FALSE(metrics.loss_is_scaled || metrics.skipped);
    EXPECT_EQ(metrics.loss_scale, 1.0);
  });
}

// Trains a weight that is no part of what is sharded.
class BesideLm final : public nn::Module, public models::FSDP2Mixin {
 public:
  BesideLm()
      : inner_(register_module("inner", std::make_shared<TinyLm>())),
        beside_(register_module("beside", std::make_shared<nn::Linear>(kVocab, 1, false, 0.5))) {}
  std::string_view type_name() const override { return "BesideLm"; }
  nn::Module& sharded_module() override { return *find("inner"); }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor logits = inner_(args.tensor(0)).tensor();
    return nn::ValueList({logits, beside_(ops::cast(logits, DType::kF32)).tensor()});
  }
  void _post_fully_shard(const models::Fsdp2Options& options) override {
    FSDP2Mixin::_post_fully_shard(options);
    models::init_on_device(*find("beside"), options.weights);
  }

 private:
  nn::Child<TinyLm> inner_;
  nn::Child<nn::Linear> beside_;
};

TEST_F(Fp16, WhatIsTrainedBesideTheShardedPartIsUnscaledAndMayOverflowToo) {
  callbacks.model_provider = [](const TrainArguments&) { return std::make_shared<BesideLm>(); };
  const auto overflow_beside = [&](int bad_rank) {
    callbacks.forward_step = [=](data::DataIterator& data, nn::Module& model) {
      const data::Batch batch = data.next();
      return data::ForwardResult{model(batch["ids"]), [=, targets = batch["targets"]](const nn::Value& out) {
                                   const bool bad = RankContext::current().rank() == bad_rank;
                                   const Tensor beside = ops::scale(ops::mean(out.list()[1].tensor()), bad ? 1e38 : 1);
                                   return ops::add(ops::cross_entropy(out.list()[0].tensor(), targets), beside);
                                 }};
    };
  };
  std::map<double, std::vector<double>> moments;  // of the beside weight, by the scale
  for (const double scale : {1.0, 1024.0}) {
    overflow_beside(-1);
    arguments.optimizer.loss_scale.constant = scale;
    on_each_rank([&](int rank, Trainer& trainer) {
      EXPECT_FALSE(trainer.step().skipped);
      if (rank != 0) return;
      const nn::ParameterState state = trainer.optimizer().state_dict().parameters.at("beside.weight");
      moments[scale] = std::get<nn::LocalTensor>(state.at("exp_avg")).value.to_vector<double>();
    });
  }
  ASSERT_EQ(moments[1].size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NE(moments[1][i], 0);
    EXPECT_NEAR(moments[1024][i], moments[1][i], 1e-2 * std::abs(moments[1][i])) << i;
  }
  overflow_beside(1);
  arguments.optimizer.check_for_nan_in_loss_and_grad = false;  // the loss overflows with it
  on_each_rank([&](int, Trainer& trainer) { EXPECT_TRUE(trainer.step().skipped); });
}

TEST_F(Fp16, WithoutTheFlagTheFileIsWarnedOf) {
  EXPECT_THAT(read_inputs(arguments, callbacks).fsdp2->warnings, ::testing::IsEmpty());
  arguments.optimizer.fp16 = false;
  EXPECT_THAT(read_inputs(arguments, callbacks).fsdp2->warnings,
              ::testing::ElementsAre(arguments.parallel.fsdp2_config_path->string() +
                                     ":2:14: param_dtype is fp16, and --fp16 is not given: the loss is not scaled, and "
                                     "gradients below 6e-8 become 0; add --fp16, or write param_dtype: bf16"));
}

// --- Where the scale cannot fall

TEST_F(Fp16, AnOverflowAtTheSmallestScaleIsAnErrorUnlessChecksAreOff) {
  arguments.optimizer.loss_scale = {.initial = k2To32, .minimum = k2To32, .hysteresis = 1};
  const std::string text =
      test::message_of<Error>([&] { on_each_rank([](int, Trainer& trainer) { trainer.step(); }); });
  EXPECT_THAT(text, ::testing::MatchesRegex(
                        "\\[rank [01]\\] found (NaN|Inf) in grad norm: iteration 1 of 4, at the loss scale 4294967296, "
                        "which is as low "
                        "as --min-loss-scale allows; nothing is saved; lower --min-loss-scale, look at the data, write "
                        "param_dtype: bf16 with --bf16, or skip each such update with "
                        "--no-check-for-nan-in-loss-and-grad"));
  arguments.optimizer.check_for_nan_in_loss_and_grad = false;
  on_each_rank([](int, Trainer& trainer) {
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(trainer.step().skipped);
    EXPECT_EQ(trainer.state().loss_scale->scale, k2To32);
  });
}

TEST_F(Fp16, AnOverflowAtAConstantScaleIsAnErrorUnlessChecksAreOff) {
  arguments.optimizer.loss_scale.constant = k2To32;
  const std::string text =
      test::message_of<Error>([&] { on_each_rank([](int, Trainer& trainer) { trainer.step(); }); });
  EXPECT_THAT(
      text,
      ::testing::MatchesRegex(
          "\\[rank [01]\\] found (NaN|Inf) in grad norm: iteration 1 of 4, at the loss scale 4294967296, which is "
          "constant; nothing is saved; lower --loss-scale, look at the data, write param_dtype: bf16 "
          "with --bf16, or skip each such update with --no-check-for-nan-in-loss-and-grad"));
  arguments.optimizer.check_for_nan_in_loss_and_grad = false;
  on_each_rank([](int, Trainer& trainer) {
    const StepMetrics metrics = trainer.step();
    EXPECT_TRUE(metrics.skipped);
    EXPECT_EQ(metrics.loss_scale, k2To32);
    EXPECT_EQ(trainer.state().loss_scale, std::nullopt);
  });
}

TEST_F(Fp16, ALossThatIsNotFiniteIsAnErrorAtAnyScale) {
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    const data::Batch batch = data.next();
    return data::ForwardResult{model(batch["ids"]), [targets = batch["targets"]](const nn::Value& logits) {
                                 return ops::scale(ops::cross_entropy(logits, targets), 1e300);
                               }};
  };
  EXPECT_THAT(test::message_of<Error>([&] { on_each_rank([](int, Trainer& trainer) { trainer.step(); }); }),
              ::testing::HasSubstr("found Inf in local forward loss calculation: iteration 1 of 4; "));
}

// --- The curve of the reference in fp32 (tests/reference/README.md), with the tolerance of bf16

TEST_F(Fp16, FollowsTheReferenceCurve) {
  const std::filesystem::path folder =
      std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/training/qwen2_w4_fp32";
  const io::SafetensorsFile file(folder / "tokens.safetensors");
  const io::StoredTensor& tokens = file.at("tokens");
  const std::int64_t batch = tokens.shape[1], seq = tokens.shape[2] - 1;
  shard("[model.embed_tokens, \"model.layers.{*}\", lm_head]");
  arguments.model.init_from_hf_path = folder;
  arguments.schedule.micro_batch_size = static_cast<int>(batch) / kRanks;
  arguments.schedule.global_batch_size = static_cast<int>(batch);
  arguments.data.seq_length = static_cast<int>(seq);
  arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = tokens.shape[0];
  arguments.schedule.lr = 1e-3;
  arguments.schedule.lr_decay_style = LrDecayStyle::kConstant;
  arguments.optimizer.adam_beta2 = 0.95;
  arguments.schedule.weight_decay = 0.1;
  arguments.optimizer.loss_scale.initial = 65536;
  callbacks.model_provider = [&](const TrainArguments&) {
    return models::build_decoder(models::load_decoder_config(folder));
  };
  callbacks.train_valid_test_datasets_provider = [&](const TrainArguments&) {
    return data::DataLoaders{.train = [&](std::span<const std::int64_t> samples) {
      const Shape shape{std::ssize(samples), seq};
      const Tensor ids = Tensor::host(shape, DType::kI32, "ids"), targets = Tensor::host(shape, DType::kI32, "targets");
      const auto row_bytes = static_cast<std::size_t>(seq) * sizeof(std::int32_t);
      for (std::int64_t row = 0; row < std::ssize(samples); ++row) {
        const std::byte* from =
            tokens.bytes.data() +
            static_cast<std::size_t>(samples[static_cast<std::size_t>(row)] * (seq + 1)) * sizeof(std::int32_t);
        std::memcpy(ids.data<std::int32_t>() + row * seq, from, row_bytes);
        std::memcpy(targets.data<std::int32_t>() + row * seq, from + sizeof(std::int32_t), row_bytes);
      }
      return data::Batch{{{"ids", ids}, {"targets", targets}}};
    }};
  };
  std::ifstream stream(folder / "curve.json");
  const nlohmann::json curve = nlohmann::json::parse(stream).at("curve");
  ASSERT_EQ(std::ssize(curve), arguments.schedule.train_iters);
  on_each_rank([&](int, Trainer& trainer) {
    for (const nlohmann::json& expected : curve) {
      const StepMetrics metrics = trainer.step();
      ASSERT_FALSE(metrics.skipped) << metrics.step;
      const double loss = expected.at("loss"), norm = expected.at("grad_norm");
      EXPECT_NEAR(metrics.loss, loss, 2e-3) << "loss of step " << metrics.step;
      EXPECT_NEAR(metrics.grad_norm / norm, 1.0, 1e-2) << "gradient norm of step " << metrics.step;
    }
  });
}

}  // namespace
}  // namespace loom::train
