// Promise: what dropout zeros depends on sample, token and call alone, so a model with dropout has one curve: with any
//          number of ranks, any micro-batch, with and without sharding, in pieces of the batch, with every kind of
//          recompute; and it resumes bit for bit.
// World:   1, 2 and 4 ranks as threads; a GPT-2 of two layers that drops embeddings, attention weights and residuals.
#include <cmath>
#include <gmock/gmock.h>
#include <numeric>

#include "engine/launch/run_ranks.h"
#include "engine/objective/preference_step.h"
#include "engine/tensor/ops.h"
#include "engine/train/drawn_rows.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "models/decoder/decoder.h"
#include "sharding/full_parameters.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using Samples = std::span<const std::int64_t>;

constexpr std::int64_t kIds = 16, kTokens = 6, kSteps = 6;
const std::string kFile = "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n";

models::DecoderConfig gpt2(double dropout) {
  models::DecoderConfig config;
  config.family = models::DecoderFamily::kGpt2;
  config.vocab_size = kIds;
  config.hidden_size = 8;
  config.intermediate_size = 32;
  config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 8;
  config.attention_dropout = config.embedding_dropout = config.residual_dropout = dropout;
  config.initializer_range = 0.3;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.tie_word_embeddings = true;
  return config;
}

// Rows of tokens that differ from sample to sample; `answer` tells the two of a pair apart.
data::Batch rows_of_samples(Samples samples, std::int64_t answers) {
  const Shape shape{answers * static_cast<std::int64_t>(samples.size()), kTokens};
  const Tensor ids = Tensor::host(shape, DType::kI32, "ids"), targets = Tensor::host(shape, DType::kI32, "targets");
  auto *id = ids.data<std::int32_t>(), *target = targets.data<std::int32_t>();
  for (std::int64_t answer = 0; answer < answers; ++answer) {
    for (const std::int64_t sample : samples) {
      for (std::int64_t token = 0; token < kTokens; ++token) {
        const std::int64_t value = sample * sample + 3 * token + 5 * answer;
        *id++ = static_cast<std::int32_t>(value % kIds);
        *target++ = static_cast<std::int32_t>((value + 3) % kIds);
      }
    }
  }
  return {{{"input_ids", ids}, {"targets", targets}}};
}

data::ForwardResult next_tokens(data::DataIterator& data, nn::Module& model) {
  const data::Batch batch = data.next();
  return {model(batch["input_ids"]),
          [targets = batch["targets"]](const nn::Value& logits) { return ops::cross_entropy(logits, targets); }};
}

struct Layout {
  int ranks = 1;
  int micro_batch = 8;
  std::string keys = {};  // of the file, behind kFile
  bool is_sharded = true;
};

class DropoutCurve : public ::testing::Test {
 protected:
  DropoutCurve() {
    arguments.schedule.global_batch_size = 8;
    arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = kSteps;
    arguments.schedule.lr = 0.5;
    arguments.optimizer.kind = OptimizerKind::kSgd;
  }

  void on_each_rank(const Layout& run, const std::function<void(int rank, Trainer& trainer)>& body) {
    arguments.launch.ranks = run.ranks;
    arguments.schedule.micro_batch_size = run.micro_batch;
    arguments.parallel.use_torch_fsdp2 = run.is_sharded;
    arguments.parallel.fsdp2_config_path.reset();
    if (run.is_sharded) {
      arguments.parallel.fsdp2_config_path = test::write_file(folder / "fsdp2.yaml", kFile + run.keys);
    }
    const TrainingInputs inputs = read_inputs(arguments, callbacks);
    launch::run_ranks(run.ranks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, rank_setup(arguments));
      Trainer trainer(arguments, callbacks, inputs, world);
      body(context.rank(), trainer);
    });
  }
  std::vector<double> losses(const Layout& run) {
    std::vector<double> found;
    on_each_rank(run, [&](int rank, Trainer& trainer) {
      for (int step = 0; step < kSteps; ++step) {
        const double loss = trainer.step().loss;
        if (rank == 0) found.push_back(loss);
      }
    });
    return found;
  }
  void expect_same(const Layout& run, const std::vector<double>& expected) {
    const std::vector<double> found = losses(run);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-6 * std::abs(expected[i]))
          << "step " << i << ", " << run.ranks << " ranks, micro-batch " << run.micro_batch << ", " << run.keys;
    }
  }
  void drop(double share) {
    callbacks.model_provider = [share](const TrainArguments&) { return models::build_decoder(gpt2(share)); };
  }
  void give_pairs() {
    arguments.objective.stage = objective::Stage::kSimpo;
    callbacks.forward_step = objective::preference_step(arguments.objective.simpo);
    callbacks.train_valid_test_datasets_provider = [](const TrainArguments&) {
      return data::DataLoaders{.train = [](Samples samples) { return rows_of_samples(samples, 2); }};
    };
  }

  const std::filesystem::path folder = test::fresh_folder();
  TrainSections arguments;
  PretrainCallbacks callbacks{
      .train_valid_test_datasets_provider =
          [](const TrainArguments&) {
            return data::DataLoaders{.train = [](Samples samples) { return rows_of_samples(samples, 1); }};
          },
      .model_provider = [](const TrainArguments&) { return models::build_decoder(gpt2(0.2)); },
      .forward_step = next_tokens};
};

TEST_F(DropoutCurve, IsTheSameWithAnyNumberOfRanksAndMicroBatches) {
  const std::vector<double> one = losses({});
  for (const int ranks : {1, 2, 4}) {
    for (const int micro_batch : {1, 2, 4, 8}) {
      if (ranks * micro_batch <= 8) expect_same({.ranks = ranks, .micro_batch = micro_batch}, one);
    }
  }
  expect_same({.is_sharded = false}, one);
  expect_same({.micro_batch = 2, .is_sharded = false}, one);
  drop(0);
  const std::vector<double> none = losses({});
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_GT(std::abs(one[i] - none[i]), 1e-3) << i;
}

TEST_F(DropoutCurve, IsTheSameInPiecesOfTheBatch) {
  const std::vector<double> one = losses({});
  for (const int rows : {1, 3}) {
    const std::string keys = fmt::format("chunk_mbs_modules: [\"transformer.h.{{*}}\"]\nchunk_mbs: {}\n", rows);
    expect_same({.keys = keys}, one);
    expect_same({.ranks = 2, .micro_batch = 4, .keys = keys}, one);
    expect_same({.ranks = 2, .micro_batch = 4, .keys = keys + "recompute_modules: [\"transformer.h.{*}\"]\n"}, one);
  }
}

TEST_F(DropoutCurve, HasTheSameBitsWithEveryKindOfRecompute) {
  for (const int micro_batch : {2, 4}) {
    const std::vector<double> kept = losses({.ranks = 2, .micro_batch = micro_batch});
    for (const char* keys :
         {"use_reentrant: true\n", "use_reentrant: false\n", "recompute_every: 2\n",
          "use_reentrant: false\nrecompute_children: true\n", "use_reentrant: false\nrecompute_keep: selected_ops\n"}) {
      const std::string layers = "recompute_modules: [\"transformer.h.{*}\"]\n";
      EXPECT_EQ(losses({.ranks = 2, .micro_batch = micro_batch, .keys = layers + keys}), kept) << keys;
    }
  }
}

TEST_F(DropoutCurve, IsTheSameForPairsOfAnswers) {
  give_pairs();
  const std::vector<double> one = losses({});
  for (const int ranks : {1, 2, 4}) {
    for (const int micro_batch : {1, 2}) expect_same({.ranks = ranks, .micro_batch = micro_batch}, one);
  }
}

TEST_F(DropoutCurve, GoesOnBitForBitWithTheWeightsAndThePositionAlone) {
  const Layout run{.ranks = 2, .micro_batch = 2};
  const std::vector<double> whole = losses(run);
  std::vector<nn::StateDict> weights(2);
  std::vector<nn::OptimizerState> optimizer(2);
  std::vector<TrainState> states(2);
  on_each_rank(run, [&](int rank, Trainer& trainer) {
    for (int step = 0; step < 3; ++step) trainer.step();
    const auto own = static_cast<std::size_t>(rank);
    weights[own] = nn::host_copies(sharding::local_state_dict(trainer.sharded_module()));
    optimizer[own] = nn::host_copies(trainer.optimizer().state_dict());
    states[own] = trainer.state();
  });
  std::vector<double> rest;
  on_each_rank(run, [&](int rank, Trainer& trainer) {
    const auto own = static_cast<std::size_t>(rank);
    nn::load_state_dict(trainer.sharded_module(), weights[own]);
    trainer.optimizer().load_state_dict(optimizer[own]);
    trainer.set_state(states[own]);
    for (int step = 3; step < kSteps; ++step) {
      const double loss = trainer.step().loss;
      if (rank == 0) rest.push_back(loss);
    }
  });
  EXPECT_THAT(rest, ElementsAre(whole[3], whole[4], whole[5]));
}

TEST_F(DropoutCurve, GoesByRowsThatAreUniqueInARun) {
  const test::OneRank rank;
  TrainingInputs inputs;
  const std::vector<std::int64_t> samples{4, 5, 6};
  const RngRows rows = drawn_rows(arguments, inputs, samples);
  EXPECT_THAT(rows.numbers, ElementsAre(4, 5, 6));
  EXPECT_TRUE(rows.parts.empty());
  arguments.objective.stage = objective::Stage::kOrm;
  EXPECT_THAT(drawn_rows(arguments, inputs, samples).numbers, ElementsAre(8, 10, 12, 9, 11, 13)) << "chosen, rejected";
  arguments.data.seed += 1;
  EXPECT_NE(drawn_rows(arguments, inputs, samples).key, rows.key);
  inputs.fsdp2.emplace().sequences.degrees = {.ring = 2, .ulysses = 1};
  const std::vector<RngRows::Parts> parts = drawn_rows(arguments, inputs, samples).parts;
  ASSERT_EQ(parts.size(), 2U);  // the first and the last of four
  EXPECT_EQ(std::pair(parts[0].begin, parts[0].count), std::pair(std::int64_t{0}, std::int64_t{1}));
  EXPECT_EQ(std::pair(parts[1].begin, parts[1].count), std::pair(std::int64_t{3}, std::int64_t{1}));
}

}  // namespace
}  // namespace loom::train
