// Promise: pretrain() turns three callbacks into a training program: it feeds each rank its samples, shards the model
//          by its own fully_shard or by the file, minimises loss_func, evaluates, reports and saves; what a callback
//          does wrong is said.
// World:   ranks as threads; a model that learns token -> (3 token + 1) mod 8.
#include "engine/cli/pretrain.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "models/hf/transformers_model.h"
#include "models/mixin/fsdp2_mixin.h"
#include "tests/support/files.h"
#include "tests/support/logged.h"

namespace loom::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kVocab = 8;
using Words = std::vector<std::string>;

class TinyLm : public nn::Module {
 public:
  TinyLm() {
    register_module("embed", std::make_shared<nn::Embedding>(kVocab, 4, 0.5));
    register_module("head", std::make_shared<nn::Linear>(4, kVocab, false, 0.5));
  }
  std::string_view type_name() const override { return "TinyLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return (*find("head"))((*find("embed"))(args.tensor(0))); }
};

data::Batch batch_of(std::span<const std::int64_t> samples) {
  const Shape shape{static_cast<std::int64_t>(samples.size())};
  const Tensor ids = Tensor::host(shape, DType::kI64, "ids");
  const Tensor targets = Tensor::host(shape, DType::kI64, "targets");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ids.data<std::int64_t>()[i] = samples[i] % kVocab;
    targets.data<std::int64_t>()[i] = (3 * samples[i] + 1) % kVocab;
  }
  return {{{"ids", ids}, {"targets", targets}}};
}

data::DataLoaders datasets_provider(const train::TrainArguments&) { return {.train = batch_of, .about = "numbers"}; }
std::shared_ptr<nn::Module> model_provider(const train::TrainArguments&) { return std::make_shared<TinyLm>(); }
data::ForwardResult forward_step(data::DataIterator& data, nn::Module& model) {
  const data::Batch batch = data.next();
  return {model(batch["ids"]),
          [targets = batch["targets"]](const nn::Value& logits) { return ops::cross_entropy(logits, targets); }};
}
const train::PretrainCallbacks kCallbacks{datasets_provider, model_provider, forward_step};

class Pretrain : public ::testing::Test {
 protected:
  Pretrain() { test::write_file(folder / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\n"); }

  job::Job arguments(const Words& more) const {
    Words words{"tiny",
                "--seq-length",
                "1",
                "--global-batch-size",
                "8",
                "--lr",
                "0.1",
                "--weight-decay",
                "0",
                "--metrics-path",
                (folder / "metrics.jsonl").string()};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    const launch::Start context{.cores = 2, .processes = 0, .local_processes = 0};
    return std::get<job::Job>(parse_program_arguments(static_cast<int>(argv.size()), argv.data(), {}, context));
  }
  Words two_ranks(const Words& more) const {
    Words words{"--nproc-per-node", "2", "--use-torch-fsdp2", "--fsdp2-config-path", (folder / "fsdp2.yaml").string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // What the program prints; its metrics are then in `metrics`.
  std::string run(const Words& flags, const train::PretrainCallbacks& callbacks = kCallbacks) {
    std::ostringstream out;
    pretrain(arguments(flags), callbacks, out);
    metrics.clear();
    std::istringstream lines(test::read_file(folder / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) metrics.push_back(nlohmann::json::parse(line));
    return out.str();
  }
  double loss(std::size_t step) const { return metrics.at(step).at("loss"); }

  const std::filesystem::path folder = test::fresh_folder();
  std::vector<nlohmann::json> metrics;
};

TEST_F(Pretrain, MinimisesTheLoss) {
  const std::string out = run(two_ranks({"--train-iters", "40"}));
  ASSERT_EQ(metrics.size(), 40u);
  EXPECT_NEAR(loss(0), std::log(kVocab), 0.5);
  EXPECT_LT(loss(39), 0.1);
  EXPECT_THAT(out, HasSubstr("TinyLm of 64 parameters on 2 ranks; numbers\n"));
  EXPECT_THAT(out, HasSubstr("1 x 2: shards over 2, replicates over 1\n"));
}

TEST_F(Pretrain, ASkippedIterationHasNoMetricsAndIsSaid) {
  const std::string out = run(two_ranks({"--train-iters", "4", "--iterations-to-skip", "3"}));
  ASSERT_EQ(metrics.size(), 3u);
  EXPECT_EQ(metrics[1].at("step"), 2);
  EXPECT_EQ(metrics[2].at("step"), 4);
  EXPECT_THAT(out, HasSubstr("step 3: skipped (--iterations-to-skip); its data is consumed, nothing is trained\n"));
}

TEST_F(Pretrain, TrainsOnWholeBatchesOfTheSamples) {
  run({"--train-samples", "30"});
  EXPECT_EQ(metrics.size(), 3u);  // batches of 8
  EXPECT_EQ(metrics[2].at("lr"), 0.1 * (1 - 16.0 / 30));
}

TEST_F(Pretrain, Fp16SkipsUpdatesUntilItsLossScaleFits) {
  test::write_file(folder / "fp16.yaml",
                   "sharding_size: auto\nparam_dtype: fp16\nsub_modules_to_wrap: [embed, head]\n");
  run({"--nproc-per-node", "2", "--use-torch-fsdp2", "--fsdp2-config-path", (folder / "fp16.yaml").string(), "--fp16",
       "--train-iters", "60", "--lr-decay-style", "constant"});
  ASSERT_EQ(metrics.size(), 60u);
  EXPECT_EQ(metrics[0].at("skipped"), true);
  EXPECT_EQ(metrics[0].at("loss_scale"), 4294967296.0);
  EXPECT_EQ(metrics[1].at("loss_scale"), 2147483648.0);
  EXPECT_TRUE(metrics[1].at("grad_norm").is_null());
  EXPECT_FALSE(metrics[59].contains("skipped"));
  EXPECT_GE(metrics[59].at("loss_scale"), 1.0);
  EXPECT_LT(loss(59), 0.2);
}

TEST_F(Pretrain, Fp16WantsTheFileToSayIt) {
  EXPECT_EQ(
      test::message_of<ConfigError>([&] { run(two_ranks({"--fp16"})); }),
      (folder / "fsdp2.yaml").string() +
          ": param_dtype is not given, and --fp16 asks for fp16; write param_dtype: fp16 (parameters stay fp32, so "
          "that the optimizer can resume), or remove the flag");
}

TEST_F(Pretrain, TheCurveDoesNotDependOnTheRanks) {
  run({"--train-iters", "5"});
  const auto one = metrics;
  run(two_ranks({"--train-iters", "5", "--micro-batch-size", "2"}));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(loss(i), one[i].at("loss"), 1e-6) << i;
}

TEST_F(Pretrain, EverySampleOfAStepComesOnceWhateverTheRanks) {
  std::mutex mutex;
  std::multiset<std::int64_t> seen;
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.train_valid_test_datasets_provider = [&](const train::TrainArguments&) {
    return data::DataLoaders{.train = [&](std::span<const std::int64_t> samples) {
      const std::lock_guard lock(mutex);
      seen.insert(samples.begin(), samples.end());
      return batch_of(samples);
    }};
  };
  run(two_ranks({"--train-iters", "2", "--micro-batch-size", "2"}), callbacks);
  std::multiset<std::int64_t> expected;
  for (std::int64_t sample = 0; sample < 16; ++sample) expected.insert(sample);
  EXPECT_EQ(seen, expected);
}

TEST_F(Pretrain, TheLastRankPrintsMegatronsLineBetweenWhatTheFirstPrints) {
  const std::string out = run(two_ranks(
      {"--train-iters", "3", "--log-format", "megatron", "--log-interval", "1", "--save", (folder / "out").string()}));
  std::size_t at = 0;
  for (const char* part : {"1 x 2: shards over 2", "\ntraining ...\n[before the start of training step] datetime: ",
                           " iteration        1/       3 | consumed samples:            8 |",
                           " iteration        2/       3 | consumed samples:           16 |",
                           " iteration        3/       3 | consumed samples:           24 |",
                           "\n[after training is done] datetime: ", "\nmodel written to "}) {
    const std::size_t found = out.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " in\n" << out;
    at = found + 1;
  }
}

TEST_F(Pretrain, WarnsOfSpikesAndGoesOn) {
  // From the 103rd step on, behind 102 * 8 samples, the loss is a thousand times what it was.
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.train_valid_test_datasets_provider = [](const train::TrainArguments&) {
    return data::DataLoaders{.train = [](std::span<const std::int64_t> samples) {
      data::Batch batch = batch_of(samples);
      const Tensor factor = Tensor::host({1}, DType::kF32, "factor");
      factor.data<float>()[0] = samples.front() >= 102 * 8 ? 1000.0F : 1.0F;
      batch.values.emplace_back("factor", factor);
      return batch;
    }};
  };
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) -> data::ForwardResult {
    const data::Batch batch = data.next();
    return {model(batch["ids"]), [batch](const nn::Value& logits) {
              return ops::scale(ops::cross_entropy(logits, batch["targets"]),
                                static_cast<double>(batch["factor"].data<float>()[0]));
            }};
  };
  const test::Logged logged;
  run(two_ranks({"--train-iters", "103", "--lr", "1e-9", "--check-for-spiky-loss"}), callbacks);
  ASSERT_EQ(metrics.size(), 103u);
  double largest = 0;
  for (std::size_t i = 0; i < 100; ++i) largest = std::max(largest, loss(i));
  EXPECT_EQ(logged.text(),
            fmt::format("warning: iteration 103: the loss is {}, at least 10 times the largest of the first 100, {}; "
                        "training goes on: look at the data of this iteration, or lower --lr or --clip-grad\n",
                        loss(102), largest));
}

TEST_F(Pretrain, EvaluatesBetweenStepsAndTestsAtTheEnd) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.loss_unit = "nats";
  callbacks.train_valid_test_datasets_provider = [](const train::TrainArguments&) {
    return data::DataLoaders{.train = batch_of, .valid = batch_of, .test = batch_of};
  };
  const std::string out =
      run(two_ranks({"--train-iters", "30", "--eval-interval", "15", "--eval-iters", "2"}), callbacks);
  for (std::size_t i = 0; i < 30; ++i) EXPECT_EQ(metrics[i].contains("held_out_loss"), i == 14 || i == 29) << i;
  const double last = metrics.back().at("held_out_loss");
  EXPECT_LT(last, metrics[14].at("held_out_loss").get<double>());
  EXPECT_THAT(out, HasSubstr(fmt::format("step 30: held-out loss {:.4f} nats\n", last)));
  EXPECT_THAT(out, HasSubstr(fmt::format("test loss {:.4f} nats\n", last)));
}

TEST_F(Pretrain, ReportsAreAveragedOverMicroBatchesAndRanks) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    const data::Batch batch = data.next();
    const double first = static_cast<double>(batch["ids"].data<std::int64_t>()[0]);
    return data::ForwardResult{
        model(batch["ids"]), [=, targets = batch["targets"]](const nn::Value& logits) {
          return data::Loss(ops::cross_entropy(logits, targets), {{"first id", first}, {"one", 1.0}});
        }};
  };
  run(two_ranks({"--train-iters", "1", "--micro-batch-size", "2"}), callbacks);
  EXPECT_EQ(metrics[0].at("reports").at("first id"), (0 + 2 + 4 + 6) / 4.0);
  EXPECT_EQ(metrics[0].at("reports").at("one"), 1.0);
  EXPECT_FALSE((run({"--train-iters", "1"}), metrics[0].contains("reports")));
}

TEST_F(Pretrain, ReportsOfOtherNamesOnAnotherRankAreAnError) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    const data::Batch batch = data.next();
    const bool first = RankContext::current().rank() == 0;
    return data::ForwardResult{
        model(batch["ids"]), [=, targets = batch["targets"]](const nn::Value& logits) {
          return data::Loss(ops::cross_entropy(logits, targets), {{first ? "accuracy" : "perplexity", 1.0}});
        }};
  };
  EXPECT_THAT(test::message_of<ModelError>([&] {
                run(two_ranks({"--train-iters", "1"}), callbacks);
              }),
              ::testing::AnyOf("[rank 0] loss_func reported accuracy here and other figures on other ranks; report the "
                               "same names in the same order on every rank",
                               "[rank 1] loss_func reported perplexity here and other figures on other ranks; report "
                               "the same names in the same order on every rank"));
}

// A wrong layer: 4 features into a layer of 5.
class WrongShapes final : public nn::Module {
 public:
  WrongShapes() {
    register_module("embed", std::make_shared<nn::Embedding>(kVocab, 4, 0.5));
    register_module("head", std::make_shared<nn::Linear>(5, kVocab, false, 0.5));
  }
  std::string_view type_name() const override { return "WrongShapes"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return (*find("head"))((*find("embed"))(args.tensor(0))); }
};

TEST_F(Pretrain, AShapeErrorNamesModulePathOperatorShapesAndWhatFits) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.model_provider = [](const train::TrainArguments&) { return std::make_shared<WrongShapes>(); };
  EXPECT_EQ(test::message_of<ModelError>([&] {
              run({"--train-iters", "1"}, callbacks);
            }),
            "[rank 0] in the forward of 'head' (Linear): linear: input fp32 [1, 4] with weight fp32 [8, 5]; a weight "
            "[outputs, inputs] takes an input of as many inputs, in one dtype");
}

// A model of the program's own that knows its configuration.
class KnowsItsConfig final : public TinyLm, public models::FSDP2Mixin {
 public:
  std::string config_json() const override { return R"({"model_id": "tiny", "width": 4})"; }
};

TEST_F(Pretrain, SavesTheConfigurationOfAModelOfItsOwn) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.model_provider = [](const train::TrainArguments&) { return std::make_shared<KnowsItsConfig>(); };
  run({"--train-iters", "1", "--save", (folder / "out").string()}, callbacks);
  EXPECT_EQ(test::read_file(folder / "out/config.json"), R"({"model_id": "tiny", "width": 4})");
  run({"--train-iters", "1", "--save", (folder / "half").string(), "--save-dtype", "bf16"}, callbacks);
  EXPECT_EQ(nlohmann::json::parse(test::read_file(folder / "half/config.json")).at("torch_dtype"), "bfloat16");
  EXPECT_EQ(io::HfWeights(folder / "half").at("head.weight").dtype, DType::kBF16);
  run({"--train-iters", "1", "--save", (folder / "plain").string()});
  EXPECT_FALSE(std::filesystem::exists(folder / "plain/config.json"));  // nobody knows one
}

class OwnStrategy final : public TinyLm, public models::FSDP2Mixin {
 public:
  explicit OwnStrategy(std::atomic<int>& calls) : calls_(calls) {}

 protected:
  void _fully_shard() override {
    ++calls_;
    models::FSDP2Mixin::_fully_shard();
  }

 private:
  std::atomic<int>& calls_;
};

TEST_F(Pretrain, AModelWithTheMixinIsShardedByItsOwnFullyShard) {
  std::atomic<int> calls = 0;
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.model_provider = [&](const train::TrainArguments&) { return std::make_shared<OwnStrategy>(calls); };
  run(two_ranks({"--train-iters", "3"}), callbacks);
  EXPECT_EQ(calls, 2);  // once a rank
  const double own = loss(2);
  run(two_ranks({"--train-iters", "3"}));
  EXPECT_EQ(loss(2), own);
}

TEST_F(Pretrain, SavesTheWholeParametersAndCallsWhatComesAfterOnEveryRank) {
  std::atomic<int> calls = 0;
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.after_training = [&](nn::Module& model, const train::TrainArguments&, std::ostream& out) {
    ++calls;
    out << "after " << model.type_name() << "\n";
  };
  const std::string out = run(two_ranks({"--train-iters", "1", "--save", (folder / "out").string()}), callbacks);
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(out, ::testing::EndsWith(fmt::format("model written to {}\nafter TinyLm\n", (folder / "out").string())));
  const io::HfWeights weights(folder / "out");
  EXPECT_THAT(weights.names(), ElementsAre("embed.weight", "head.weight"));
  EXPECT_EQ(weights.at("embed.weight").shape, (Shape{kVocab, 4}));
}

TEST_F(Pretrain, StartsFromTheWeightsOfAFolder) {
  run({"--train-iters", "20", "--save", (folder / "out").string()});
  const double trained = loss(19);
  run(two_ranks({"--train-iters", "1", "--init-from-hf-path", (folder / "out").string()}));
  EXPECT_LT(loss(0), trained);
}

TEST_F(Pretrain, TiedWeightsThatTheModelReadsByItselfAreUntiedThroughTheFlagOfTheirFolder) {
  const std::string gpt2 = std::string(LOOM_SOURCE_DIR) + "/tests/reference/logits/gpt2";
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.model_provider = [&](const train::TrainArguments&) {
    return std::make_shared<models::TransformersModel>(gpt2);
  };
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    const data::Batch batch = data.next();
    const Shape shape{batch["ids"].numel(), 1};
    return data::ForwardResult{model(batch["ids"].view(shape)), [=](const nn::Value& logits) {
                                 return ops::cross_entropy(logits, batch["targets"].view(shape));
                               }};
  };
  run({"--train-iters", "1"}, callbacks);
  const double tied = loss(0);
  const Words untie{"--train-iters", "1", "--untie-embeddings-and-output-weights"};
  EXPECT_EQ(test::message_of<ConfigError>([&] { run(untie, callbacks); }),
            "--untie-embeddings-and-output-weights: the model reads tied weights of its own; add --init-from-hf-path " +
                gpt2 + ", from which both copies are read");
  Words with_folder = untie;
  with_folder.insert(with_folder.end(), {"--init-from-hf-path", gpt2});
  run(with_folder, callbacks);
  EXPECT_EQ(loss(0), tied);
}

// --- What a callback does wrong

struct Wrong {
  std::string what;
  std::function<void(train::PretrainCallbacks&)> spoil;
  std::string message;
};

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.what; }

class WrongCallbacks : public Pretrain, public ::testing::WithParamInterface<Wrong> {};

TEST_P(WrongCallbacks, AreConfigErrors) {
  train::PretrainCallbacks callbacks = kCallbacks;
  GetParam().spoil(callbacks);
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              run(two_ranks({"--train-iters", "1"}), callbacks);
            }),
            GetParam().message);
}

data::ForwardStep with_loss(std::function<data::Loss(const nn::Value&)> loss) {
  return [loss](data::DataIterator& data, nn::Module& model) {
    return data::ForwardResult{model(data.next()["ids"]), loss};
  };
}

INSTANTIATE_TEST_SUITE_P(
    Pretrain, WrongCallbacks,
    ::testing::Values(
        Wrong{"no forward_step", [](train::PretrainCallbacks& c) { c.forward_step = {}; },
              "pretrain() needs train_valid_test_datasets_provider, model_provider and forward_step; one is empty"},
        Wrong{"no model", [](train::PretrainCallbacks& c) { c.model_provider = [](const auto&) { return nullptr; }; },
              "model_provider returned no model"},
        Wrong{"no train loader",
              [](train::PretrainCallbacks& c) {
                c.train_valid_test_datasets_provider = [](const auto&) { return data::DataLoaders{}; };
              },
              "train_valid_test_datasets_provider returned no train loader"},
        Wrong{"no loss_func",
              [](train::PretrainCallbacks& c) {
                c.forward_step = [](data::DataIterator&, nn::Module&) { return data::ForwardResult{}; };
              },
              "forward_step returned no loss_func; return {output, loss_func}"},
        Wrong{"a loss that is not one element",
              [](train::PretrainCallbacks& c) {
                c.forward_step = with_loss([](const auto& logits) { return logits.tensor(); });
              },
              "loss_func returned a tensor [1, 8]; return one element, the mean over the micro-batch"},
        Wrong{"a loss without the model",
              [](train::PretrainCallbacks& c) {
                c.forward_step = with_loss([](const auto&) { return Tensor::full({}, DType::kF32, 1); });
              },
              "loss_func returned a loss that no trained parameter leads to; compute it from the model's output"},
        Wrong{"no loss",
              [](train::PretrainCallbacks& c) { c.forward_step = with_loss([](const auto&) { return Tensor(); }); },
              "loss_func returned no tensor; return one element, the mean over the micro-batch"}));

TEST_F(Pretrain, ABatchNamesWhatItHas) {
  const std::int64_t sample = 0;
  const data::Batch batch = batch_of({&sample, 1});
  EXPECT_EQ(test::message_of<ModelError>([&] { (void)batch["input_ids"]; }),
            "the batch has no 'input_ids'; it has ids, targets; give it in the DataLoader, or read one of these");
}

TEST_F(Pretrain, WhatACallbackThrowsOnOneRankEndsTheJobWithItsRank) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    if (RankContext::current().rank() == 1) throw std::runtime_error("no GPU");
    return forward_step(data, model);
  };
  EXPECT_EQ(test::message_of<std::runtime_error>([&] {
              run(two_ranks({"--train-iters", "1"}), callbacks);
            }),
            "[rank 1] forward_step threw an exception in iteration 1 of 1: no GPU");
}

// --- As a main

TEST_F(Pretrain, ANaNOnOneRankEndsAllWithItsRankAndIteration) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    data::ForwardResult result = forward_step(data, model);
    if (RankContext::current().rank() == 1) {
      result.loss_func = [inner = result.loss_func](const nn::Value& logits) {
        return ops::scale(inner(logits).loss, std::numeric_limits<double>::infinity());
      };
    }
    return result;
  };
  EXPECT_EQ(test::message_of<Error>([&] {
              run(two_ranks({"--train-iters", "3"}), callbacks);
            }),
            "[rank 1] found Inf in local forward loss calculation: iteration 1 of 3; nothing is saved; look at the "
            "data, lower --lr or --clip-grad, or go on regardless with --no-check-for-nan-in-loss-and-grad");
}

// Its loss stays finite while the gradient of its head does not: embeddings are large, logits small.
class LopsidedLm : public nn::Module {
 public:
  LopsidedLm() {
    register_module("embed", std::make_shared<nn::Embedding>(kVocab, 4, 100.0));
    register_module("head", std::make_shared<nn::Linear>(4, kVocab, false, 1e-3));
  }
  std::string_view type_name() const override { return "LopsidedLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    return ops::scale(ops::scale((*find("head"))((*find("embed"))(args.tensor(0))), 1e19), 1e18);
  }
};

TEST_F(Pretrain, AGradientNormThatIsNotFiniteEndsTheRunBeforeTheOptimizer) {
  train::PretrainCallbacks callbacks = kCallbacks;
  callbacks.model_provider = [](const train::TrainArguments&) { return std::make_shared<LopsidedLm>(); };
  const std::string text = test::message_of<Error>([&] {
    run(two_ranks({"--train-iters", "3", "--micro-batch-size", "4"}), callbacks);
  });
  EXPECT_THAT(
      text, ::testing::MatchesRegex("\\[rank [01]\\] found (Inf|NaN) in grad norm, first in the gradient of '[a-z.]+' "
                                    "on rank [01]: iteration 1 of 3; nothing is "
                                    "saved; .*"));
  EXPECT_EQ(test::read_file(folder / "metrics.jsonl"), "");
}

TEST_F(Pretrain, WeightsThatAreNotFiniteReachNoSaveModel) {
  train::PretrainCallbacks callbacks = kCallbacks;
  bool saved = false;
  callbacks.save_model = [&](const auto&...) { saved = true; };
  const std::string out = (folder / "out").string();
  job::Job asked = arguments({"--train-iters", "1", "--save", out});
  asked.schedule.lr = 1e300;
  std::ostringstream printed;
  EXPECT_EQ(test::message_of<Error>([&] { pretrain(asked, callbacks, printed); }),
            "the run is done, but the model is not written, since 'embed.weight' has values that are not finite; " +
                out + " keeps what it held");
  EXPECT_FALSE(saved);
}

TEST_F(Pretrain, AsAMainReturnsTheExitStatus) {
  const auto main_with = [&](std::vector<const char*> words, const train::PretrainCallbacks& callbacks) {
    words.insert(words.begin(), "bin/tiny");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = pretrain(static_cast<int>(words.size()), words.data(), callbacks);
    ::testing::internal::GetCapturedStdout();
    return std::pair{status, ::testing::internal::GetCapturedStderr()};
  };
  const std::string metrics_path = (folder / "metrics.jsonl").string();
  const std::vector<const char*> one_step{"--train-iters", "1", "--metrics-path", metrics_path.c_str()};
  using Outcome = std::pair<int, std::string>;
  EXPECT_EQ(main_with(one_step, kCallbacks), (Outcome{0, ""}));
  EXPECT_EQ(main_with({"--help"}, kCallbacks), (Outcome{0, ""}));
  EXPECT_EQ(main_with({"--trian-iters", "1"}, kCallbacks),
            (Outcome{2, "tiny: unknown flag --trian-iters; did you mean --train-iters?\n"}));
  train::PretrainCallbacks failing = kCallbacks;
  failing.forward_step = [](data::DataIterator&, nn::Module&) -> data::ForwardResult {
    throw std::runtime_error("no GPU");
  };
  std::filesystem::remove(metrics_path);
  EXPECT_EQ(main_with(one_step, failing),
            (Outcome{1, "tiny: [rank 0] forward_step threw an exception in iteration 1 of 1: no GPU\n"}));
}

// Two inputs, which no model of the hub has.
class PairLm final : public TinyLm {
 public:
  PairLm() { register_module("side", std::make_shared<nn::Embedding>(kVocab, 4, 0.5)); }
  std::string_view type_name() const override { return "PairLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor main = (*find("embed"))(args.tensor(0)).tensor(), side = (*find("side"))(args.tensor(1)).tensor();
    return (*find("head"))(ops::add(main, side));
  }
};

// The callbacks are those of training: nothing is said to a plan that a run does not know.
TEST_F(Pretrain, PlansAProgramOfTwoInputsAndALossOfItsOwn) {
  train::PretrainCallbacks pairs;
  std::set<std::size_t> batches;
  pairs.train_valid_test_datasets_provider = [&](const train::TrainArguments&) {
    return data::DataLoaders{.train = [&](std::span<const std::int64_t> samples) {
      batches.insert(samples.size());
      data::Batch batch = batch_of(samples);
      batch.values.emplace_back("side", batch["ids"]);
      return batch;
    }};
  };
  pairs.model_provider = [](const train::TrainArguments&) { return std::make_shared<PairLm>(); };
  pairs.forward_step = [](data::DataIterator& data, nn::Module& model) {
    const data::Batch batch = data.next();
    return data::ForwardResult{
        model(batch["ids"], batch["side"]), [targets = batch["targets"]](const nn::Value& logits) {
          const Tensor loss = ops::add(ops::cross_entropy(logits, targets), ops::mean(ops::tanh(logits.tensor())));
          return data::Loss(loss, {{"own", loss.item()}});
        }};
  };
  const auto plan = [&](Words more) {
    Words words{"bin/tiny",
                "plan",
                "--use-torch-fsdp2",
                "--fsdp2-config-path",
                (folder / "pairs.yaml").string(),
                "--world-size",
                "64",
                "--micro-batch-size",
                "3",
                "--seq-length",
                "1",
                "--json",
                (folder / "plan.json").string()};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = pretrain(static_cast<int>(argv.size()), argv.data(), pairs);
    return std::tuple(status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr());
  };
  test::write_file(folder / "pairs.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, side, head]\n");
  const auto [status, out, error] = plan({});
  EXPECT_EQ(status, 0) << error;
  EXPECT_THAT(out, ::testing::StartsWith("PairLm of 96 parameters on 64 x h200, micro-batch 1 x 3 of 1 tokens\n"
                                         "1 x 64: shards over 64, replicates over 1\n"));
  EXPECT_THAT(batches, ElementsAre(3));
  const auto json = nlohmann::json::parse(test::read_file(folder / "plan.json"));
  EXPECT_EQ(json["parameters"], 3 * kVocab * 4);
  EXPECT_EQ(json["throughput"]["tokens"], 64 * 3);
  EXPECT_EQ(json["communication"][0]["collective"], "all_gather");
  EXPECT_EQ(json["communication"][0]["count"], 2 * 3) << "forward and backward, a group of each part";

  pairs.forward_step = [](data::DataIterator& data, nn::Module& model) {
    const data::Batch batch = data.next();
    return data::ForwardResult{model(batch["ids"], batch["aside"]),
                               [](const nn::Value& logits) { return data::Loss(ops::mean(logits.tensor())); }};
  };
  const auto [refused, nothing, why] = plan({});
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(why,
            "tiny: [rank 0] the batch has no 'aside'; it has ids, targets, side; give it in the DataLoader, or read "
            "one of these\n");
}

}  // namespace
}  // namespace loom::cli
