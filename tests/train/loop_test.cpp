// Promise: all ranks save after the same iterations and end after the same one, also where one rank alone got the
//          signal or has a clock that is ahead; what a callback throws is an error with rank and place.
// World:   2 ranks as threads; a model that learns token -> (3 token + 1) mod 8; at most 12 steps.
#include "engine/train/loop.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>

#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/train/rank_setup.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kVocab = 8;
constexpr int kRanks = 2;

class TinyLm final : public nn::Module {
 public:
  TinyLm()
      : embed_(register_module("embed", std::make_shared<nn::Embedding>(kVocab, 4, 0.5))),
        head_(register_module("head", std::make_shared<nn::Linear>(4, kVocab, true, 0.5))) {}
  std::string_view type_name() const override { return "TinyLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return head_(embed_(args.tensor(0))); }

 private:
  nn::Child<nn::Embedding> embed_;
  nn::Child<nn::Linear> head_;
};

data::Batch batch_of(std::span<const std::int64_t> samples) {
  const Shape shape{static_cast<std::int64_t>(samples.size())};
  const Tensor ids = Tensor::host(shape, DType::kI64, "ids"), targets = Tensor::host(shape, DType::kI64, "targets");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ids.data<std::int64_t>()[i] = samples[i] % kVocab;
    targets.data<std::int64_t>()[i] = (3 * samples[i] + 1) % kVocab;
  }
  return {{{"ids", ids}, {"targets", targets}}};
}

data::ForwardResult forward_step(data::DataIterator& data, nn::Module& model) {
  const data::Batch batch = data.next();
  return {model(batch["ids"]),
          [targets = batch["targets"]](const nn::Value& logits) { return ops::cross_entropy(logits, targets); }};
}

// What a rank saw, in its order: "step 1", "save 1", "held out 1", "done", "stopped".
struct Seen final : StepObserver {
  std::vector<std::string> events;
  ExitDecision end;
  double tokens_per_second = 0;
  std::optional<std::string> problem;

  void step_done(const StepMetrics& metrics) override {
    tokens_per_second = metrics.tokens_per_second;
    if (metrics.held_out_loss) events.push_back(fmt::format("held out {}", metrics.step));
    events.push_back(fmt::format("step {}", metrics.step));
  }
  void run_done(const std::optional<Evaluation>& test) override { events.push_back(test ? "tested" : "done"); }
  void run_stopped() override { events.push_back("stopped"); }

  // "save 2, save 4"; nothing else.
  std::vector<std::string> saves() const {
    std::vector<std::string> saves;
    for (const std::string& event : events) {
      if (event.starts_with("save")) saves.push_back(event);
    }
    return saves;
  }
};

class Loop : public ::testing::Test {
 protected:
  Loop() {
    arguments.launch.ranks = kRanks;
    arguments.schedule.micro_batch_size = 2;
    arguments.schedule.global_batch_size = 4;
    arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 12;
    arguments.schedule.eval_iters = 0;
    arguments.parallel.use_torch_fsdp2 = true;
    arguments.parallel.fsdp2_config_path = test::write_file(
        test::fresh_folder() / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\n");
  }

  using HooksOfRank = std::function<void(int rank, LoopHooks& hooks)>;

  std::vector<Seen> run(
      const HooksOfRank& change = [](int, LoopHooks&) {}, std::int64_t first_step = 0) {
    const TrainingInputs inputs = read_inputs(arguments, callbacks);
    std::vector<Seen> seen(kRanks);
    launch::run_ranks(kRanks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      Seen& own = seen[static_cast<std::size_t>(context.rank())];
      nn::make_rank(context, rank_setup(arguments));
      Trainer trainer(arguments, callbacks, inputs, world);
      TrainState state = trainer.state();
      state.step = first_step;
      trainer.set_state(state);
      LoopHooks hooks{.save = [&](std::int64_t step) { own.events.push_back(fmt::format("save {}", step)); },
                      .signal = {},
                      .elapsed_minutes = {}};
      change(context.rank(), hooks);
      own.end = run_steps(trainer, arguments.schedule, inputs.objective.loaders, {&own}, hooks);
      own.problem = trainer.problem();
    });
    return seen;
  }

  TrainSections arguments;
  PretrainCallbacks callbacks{.train_valid_test_datasets_provider =
                                  [](const TrainArguments&) {
                                    return data::DataLoaders{.train = batch_of, .valid = batch_of, .test = batch_of};
                                  },
                              .model_provider = [](const TrainArguments&) { return std::make_shared<TinyLm>(); },
                              .forward_step = forward_step};
};

TEST_F(Loop, SavesAtTheIntervalAndAfterTheLastStep) {
  arguments.schedule.train_iters = 5;
  arguments.schedule.save_interval = 2;
  for (const Seen& rank : run()) EXPECT_THAT(rank.saves(), ElementsAre("save 2", "save 4", "save 5"));
  arguments.schedule.train_iters = 4;
  for (const Seen& rank : run()) EXPECT_THAT(rank.saves(), ElementsAre("save 2", "save 4")) << "not twice";
  arguments.schedule.save_interval = 0;
  for (const Seen& rank : run()) {
    EXPECT_THAT(rank.saves(), ElementsAre("save 4"));
    EXPECT_EQ(rank.end.reason, EndReason::kLastStep);
  }
}

TEST_F(Loop, SavesAfterTheStepIsEvaluatedAndTold) {
  arguments.schedule.train_iters = 2;
  arguments.schedule.save_interval = arguments.schedule.eval_interval = arguments.schedule.eval_iters = 1;
  for (const Seen& rank : run()) {
    EXPECT_THAT(rank.events, ElementsAre("held out 1", "step 1", "save 1", "held out 2", "step 2", "save 2", "tested"));
  }
}

TEST_F(Loop, AnExitAndASaveAtOneIterationAreOneSave) {
  arguments.schedule.save_interval = arguments.schedule.exit_interval = 5;
  arguments.schedule.eval_iters = 1;  // the test data stay unread
  for (const Seen& rank : run()) {
    EXPECT_THAT(rank.events, ElementsAre("step 1", "step 2", "step 3", "step 4", "step 5", "save 5", "stopped"));
    EXPECT_EQ(rank.end.text, "exiting program at iteration 5");
    EXPECT_EQ(rank.end.signal, 0);
  }
}

TEST_F(Loop, ASignalToOneRankEndsAllRanksAfterTheSameSave) {
  arguments.schedule.eval_interval = arguments.schedule.eval_iters = 1;
  const auto signal_rank_1_in_step_3 = [](int rank, LoopHooks& hooks) {
    hooks.signal = [rank, asked = 0]() mutable { return ++asked >= 3 && rank == 1 ? SIGTERM : 0; };
  };
  for (const bool handler : {false, true}) {
    arguments.schedule.exit_signal_handler = handler;
    for (const Seen& rank : run(signal_rank_1_in_step_3)) {
      EXPECT_THAT(rank.events,
                  ElementsAre("held out 1", "step 1", "held out 2", "step 2", "step 3", "save 3", "stopped"));
      EXPECT_EQ(rank.end.text, handler ? "exiting program after receiving SIGTERM." : "");
      EXPECT_EQ(rank.end.signal, handler ? 0 : SIGTERM);
    }
  }
}

TEST_F(Loop, AClockThatIsAheadOnOneRankEndsAllRanks) {
  arguments.schedule.exit_duration_in_mins = 30;
  arguments.schedule.save_interval = 4;
  const auto run_ahead_on_rank_1 = [](int rank, LoopHooks& hooks) {
    hooks.elapsed_minutes = [rank, asked = 0.0]() mutable { return (asked += rank == 1 ? 5 : 1); };
  };
  const std::vector<Seen> seen = run(run_ahead_on_rank_1);
  // Asked twice a step: 35 minutes at the begin of step 4 on rank 1, 8 at its end on rank 0.
  for (const Seen& rank : seen) {
    EXPECT_THAT(rank.events, ElementsAre("step 1", "step 2", "step 3", "step 4", "save 4", "stopped"));
  }
  EXPECT_EQ(seen[0].end.text, "exiting program after 30.00 minutes");
  EXPECT_EQ(seen[1].end.text, "exiting program after 40.00 minutes");
}

TEST_F(Loop, CountsIterationsOverTheRunsOfAJob) {
  arguments.schedule.exit_interval = arguments.schedule.save_interval = 5;
  for (const Seen& rank : run([](int, LoopHooks&) {}, 7)) {
    EXPECT_THAT(rank.events, ElementsAre("step 8", "step 9", "step 10", "save 10", "stopped"));
  }
  for (const Seen& rank : run([](int, LoopHooks&) {}, 12)) EXPECT_THAT(rank.events, ElementsAre("done"));
}

TEST_F(Loop, WithoutHooksNothingIsSaved) {
  arguments.schedule.save_interval = 1;
  arguments.schedule.exit_duration_in_mins = 1e-9;  // there is no clock
  arguments.schedule.train_iters = 2;
  const std::vector<Seen> seen = run([](int, LoopHooks& hooks) { hooks = {}; });
  for (const Seen& rank : seen) EXPECT_THAT(rank.events, ElementsAre("step 1", "step 2", "done"));
}

TEST_F(Loop, EvaluationAloneSavesNothing) {
  arguments.schedule.skip_train = true;
  arguments.schedule.save_interval = arguments.schedule.exit_interval = arguments.schedule.eval_iters = 1;
  for (const Seen& rank : run()) {
    EXPECT_THAT(rank.events, ElementsAre("tested"));
    EXPECT_EQ(rank.end.reason, EndReason::kLastStep);
  }
}

// The step took at most what the whole run did.
TEST_F(Loop, TokensASecondAreThoseOfTheBatches) {
  constexpr std::int64_t kTokens = 1 << 18;  // of a sample, whatever --seq-length says
  arguments.schedule.train_iters = 1;
  callbacks.train_valid_test_datasets_provider = [](const TrainArguments&) {
    return data::DataLoaders{.train = [](std::span<const std::int64_t> samples) {
      data::Batch batch = batch_of(samples);
      const Shape shape{static_cast<std::int64_t>(samples.size()), kTokens};
      batch.values.emplace_back("input_ids", Tensor::host(shape, DType::kI32, "input_ids"));
      return batch;
    }};
  };
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Seen> seen = run();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const Seen& rank : seen) EXPECT_GE(rank.tokens_per_second * seconds, 4 * kTokens);
}

// --- Steps that count no token

TEST_F(Loop, AStepThatCountsNoTokenIsNoErrorUnlessTenComeInARow) {
  std::atomic<std::int64_t> counted_from = 0, counted_to = 0;  // samples
  callbacks.train_valid_test_datasets_provider = [&](const TrainArguments&) {
    data::DataLoaders loaders{.train = [](std::span<const std::int64_t> samples) {
      data::Batch batch = batch_of(samples);
      batch.values.emplace_back("first", samples.front());
      return batch;
    }};
    loaders.valid = loaders.train;
    loaders.count_tokens = [&](const data::Batch& batch) {
      const std::int64_t first = batch.at("first").number();
      const bool counts = counted_from <= first && first < counted_to;
      return data::TokenCounts{counts ? 2 : 0, 2};
    };
    return loaders;
  };
  counted_to = 4;  // the first step of twelve, and the evaluation
  arguments.schedule.eval_iters = 1;
  arguments.schedule.eval_interval = 20;
  EXPECT_THAT(test::message_of<Error>([&] { run(); }),
              HasSubstr("steps 2 to 11 count no token, so nothing is learnt; step 11 has samples 40 to 43; nothing is "
                        "saved; look at the labels of the data"));
  arguments.schedule.train_iters = 10;
  for (const Seen& rank : run()) {
    EXPECT_EQ(rank.problem, std::nullopt);
    EXPECT_THAT(rank.events, ::testing::Contains("held out 10"));
  }
  counted_from = 4;
  counted_to = 8;
  arguments.schedule.train_iters = 1;
  for (const Seen& rank : run()) {
    EXPECT_EQ(rank.problem.value_or("").find("none of its 1 step counted a token"), 0U);
    EXPECT_THAT(rank.events, ElementsAre("step 1", "save 1", "done")) << "an evaluation without a token has no loss";
  }
}

TEST_F(Loop, ASaveThatFailsEndsTheRun) {
  arguments.schedule.save_interval = 2;
  const std::string text = test::message_of<Error>([&] {
    run([](int rank, LoopHooks& hooks) {
      hooks.save = [rank](std::int64_t step) { raise<Error>("rank {} cannot save step {}", rank, step); };
    });
  });
  EXPECT_THAT(text, HasSubstr("cannot save step 2"));
}

// Throws on rank 1 from the given call on.
data::ForwardStep throwing_from(int call) {
  return [call, calls = std::make_shared<std::atomic<int>>(0)](data::DataIterator& data, nn::Module& model) {
    if (RankContext::current().rank() == 1 && ++*calls >= call) throw std::out_of_range("no such picture");
    return forward_step(data, model);
  };
}

TEST_F(Loop, WhatACallbackThrowsIsSaidWithRankAndIteration) {
  callbacks.forward_step = throwing_from(3);
  EXPECT_THAT(test::message_of<std::exception>([&] { run(); }),
              HasSubstr("[rank 1] forward_step threw an exception in iteration 3 of 12: no such picture"));
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) -> data::ForwardResult {
    return {forward_step(data, model).output, [](const nn::Value&) -> data::Loss { throw std::runtime_error("odd"); }};
  };
  EXPECT_THAT(test::message_of<std::exception>([&] { run(); }),
              HasSubstr("loss_func threw an exception in iteration 1 of 12: odd"));
}

TEST_F(Loop, WhatACallbackThrowsInAnEvaluationIsSaidSo) {
  arguments.schedule.eval_interval = 2;
  arguments.schedule.eval_iters = 1;
  callbacks.forward_step = throwing_from(3);
  callbacks.train_valid_test_datasets_provider = [](const TrainArguments&) {
    return data::DataLoaders{.train = batch_of, .valid = batch_of};
  };
  EXPECT_THAT(
      test::message_of<std::exception>([&] { run(); }),
      HasSubstr("[rank 1] forward_step threw an exception in the evaluation after iteration 2: no such picture"));
}

}  // namespace
}  // namespace loom::train
