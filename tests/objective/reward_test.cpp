// Promise: the losses of reward models are their formulas, at the last token of an answer and at the labels of steps
//          alone; a reward model is a decoder with a head of one number, which starts from the decoder's weights or its
//          own.
// World:   scores and logits made by hand, in fp64; formulas written here a second time; the tiny Qwen2 and GPT-2 of
//          configs.
#include <cmath>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/objective/reward_loss.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "models/decoder/reward_model.h"
#include "models/hf/hf_folder.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"

namespace loom::objective {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

double report(const RewardLoss& loss, const std::string& name) {
  for (const auto& [known, value] : loss.reports) {
    if (known == name) return value;
  }
  ADD_FAILURE() << name << " is not reported";
  return 0;
}

// --- outcomes

TEST(OutcomeRewards, AreTheScoresOfLastTokensAndTheLossTheirMargins) {
  const test::OneRank rank;
  // Two pairs, rows of three tokens: the chosen ones end at 3 and 1 tokens, the rejected ones at 2 and 3.
  const std::vector<double> values = {9, 9, 1.5, -0.25, 9, 9, 9, 0.5, 9, 9, 9, 0.75};
  const Tensor scores = Tensor::from(values, {4, 3, 1}).set_requires_grad(true);
  const std::vector<std::int64_t> lengths = {3, 1, 2, 3};
  const RewardLoss loss = outcome_reward_loss(scores, lengths);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(loss.loss.item(), (-std::log(sigmoid(1.5 - 0.5)) - std::log(sigmoid(-0.25 - 0.75))) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(report(loss, "rewards/chosen"), (1.5 - 0.25) / 2);
  EXPECT_DOUBLE_EQ(report(loss, "rewards/rejected"), (0.5 + 0.75) / 2);
  EXPECT_DOUBLE_EQ(report(loss, "rewards/accuracies"), 0.5);
  EXPECT_DOUBLE_EQ(report(loss, "rewards/margins"), 0);
  autograd::backward(loss.loss);
  std::vector<double> expected(values.size(), 0);
  expected[2] = -sigmoid(-1.0) / 2;
  expected[7] = sigmoid(-1.0) / 2;
  expected[3] = -sigmoid(1.0) / 2;
  expected[11] = sigmoid(1.0) / 2;
  const auto gradient = scores.grad().to_vector<double>();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(gradient[i], expected[i], 1e-12) << i;
}

TEST(OutcomeRewards, OfGreatMarginsAreFinite) {
  const test::OneRank rank;
  const std::vector<std::int64_t> lengths = {1, 1};
  const auto loss_of = [&](double chosen, double rejected) {
    return outcome_reward_loss(Tensor::from(std::vector{chosen, rejected}, {2, 1, 1}), lengths).loss.item();
  };
  EXPECT_DOUBLE_EQ(loss_of(-900, 900), 1800);
  EXPECT_DOUBLE_EQ(loss_of(900, -900), 0);
  EXPECT_DOUBLE_EQ(loss_of(3, 3), std::log(2.0));
}

TEST(OutcomeRewards, SayWhatTheyAreGiven) {
  const test::OneRank rank;
  const Tensor scores = Tensor::full({2, 3, 1}, DType::kF32, 0);
  const auto refused = [&](const Tensor& of, std::vector<std::int64_t> lengths) {
    return test::message_of<ModelError>([&] { outcome_reward_loss(of, lengths); });
  };
  EXPECT_THAT(refused(scores, {3}),
              HasSubstr("outcome_reward_loss: scores [2, 3, 1] and 1 lengths; one score for each "
                        "token of a row is needed, chosen answers and then as many rejected ones"));
  EXPECT_THAT(refused(scores, {0, 3}), HasSubstr("with a length from 1 to the rows' length for each"));
  EXPECT_THAT(refused(scores, {3, 4}), HasSubstr("with a length from 1"));
  EXPECT_THAT(refused(Tensor::full({2, 3, 8}, DType::kF32, 0), {3, 3}), HasSubstr("scores [2, 3, 8]"));
}

// --- processes

class ProcessRewards : public ::testing::Test {
 protected:
  // One row of three tokens, five ids; labels at tokens 0 and 2.
  const test::OneRank rank;
  const std::vector<double> values = {0.5, -1, 2, 0.25, 1, 7, 7, 7, 7, 7, -0.5, 1.5, 0, 2, -2};
  const Tensor logits = Tensor::from(values, {1, 3, 5}).set_requires_grad(true);
  const Tensor targets = Tensor::from(std::vector<std::int32_t>{4, -100, 1}, {1, 3});
};

TEST_F(ProcessRewards, AreTheLogitsOfTheLabelsAloneAtTheirOwnTokens) {
  const std::vector<std::int32_t> labels = {4, 1};
  const RewardLoss loss = process_reward_loss(logits, targets, labels);
  const auto share = [](double of, double other) { return std::exp(of) / (std::exp(of) + std::exp(other)); };
  EXPECT_NEAR(loss.loss.item(), -(std::log(share(1, -1)) + std::log(share(1.5, -2))) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(report(loss, "rewards/accuracies"), 1);
  autograd::backward(loss.loss);
  std::vector<double> expected(values.size(), 0);
  expected[4] = (share(1, -1) - 1) / 2;
  expected[1] = share(-1, 1) / 2;
  expected[11] = (share(1.5, -2) - 1) / 2;
  expected[14] = share(-2, 1.5) / 2;
  const auto gradient = logits.grad().to_vector<double>();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(gradient[i], expected[i], 1e-12) << i;
}

TEST_F(ProcessRewards, WithoutLabelsAreOverAllTokens) {
  const RewardLoss loss = process_reward_loss(logits, targets, {});
  double expected = 0;
  for (const auto& [row, label] : {std::pair{0, 4}, {2, 1}}) {
    double sum = 0;
    for (int id = 0; id < 5; ++id) sum += std::exp(values[static_cast<std::size_t>(row * 5 + id)]);
    expected -= (values[static_cast<std::size_t>(row * 5 + label)] - std::log(sum)) / 2;
  }
  EXPECT_NEAR(loss.loss.item(), expected, 1e-12);
  EXPECT_DOUBLE_EQ(report(loss, "rewards/accuracies"), 0);  // ids 2 and 3 are likelier
}

TEST_F(ProcessRewards, RestrictAlsoInHalfTypes) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor half = Tensor::from(values, {1, 3, 5}, dtype);
    const double loss = process_reward_loss(half, targets, std::vector<std::int32_t>{1, 4}).loss.item();
    EXPECT_NEAR(loss, (std::log1p(std::exp(-2.0)) + std::log1p(std::exp(-3.5))) / 2, 1e-3) << name(dtype);
  }
}

TEST_F(ProcessRewards, WithoutAnyLabelAreZero) {
  const Tensor none = Tensor::from(std::vector<std::int32_t>{-100, -100, -100}, {1, 3});
  const RewardLoss loss = process_reward_loss(logits, none, {});
  EXPECT_EQ(loss.loss.item(), 0);
  EXPECT_EQ(report(loss, "rewards/accuracies"), 0);
}

// --- the model

models::DecoderConfig tiny(models::DecoderFamily family, bool tied) {
  models::DecoderConfig config;
  config.family = family;
  config.vocab_size = 32;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = tied;
  return config;
}

std::vector<std::pair<std::string, Tensor>> tensors_of(nn::Module& model) { return model.named_parameters(); }

TEST(RewardModel, IsADecoderWithAHeadOfOneNumber) {
  const test::OneRank rank;
  for (const auto& [family, name, layer] :
       {std::tuple{models::DecoderFamily::kQwen2, "Qwen2ForSequenceClassification",
                   "model.layers.0.mlp.up_proj.weight"},
        {models::DecoderFamily::kGpt2, "GPT2ForSequenceClassification", "transformer.h.0.mlp.c_fc.weight"}}) {
    const auto model = models::make_reward_model(models::build_decoder(tiny(family, true)));
    EXPECT_EQ(model->type_name(), name);
    EXPECT_TRUE(models::is_reward_model(*model));
    std::map<std::string, Shape> shapes;
    for (const auto& [path, slot] : model->named_slots()) shapes.emplace(path, slot->shard.global_shape);
    EXPECT_EQ(shapes.at("score.weight"), Shape({1, 8}));
    EXPECT_TRUE(shapes.contains(layer));
    EXPECT_FALSE(shapes.contains("lm_head.weight"));
    models::init_on_device(*model, {.seed = 3});
    const Tensor ids = Tensor::from(std::vector<std::int32_t>{1, 2, 3, 4}, {1, 4});
    EXPECT_EQ((*model)(ids).tensor().shape(), Shape({1, 4, 1}));
  }
}

TEST(RewardModel, StartsFromADecoderOrFromItsOwnFolder) {
  const test::OneRank rank;
  const auto folder = test::fresh_folder();
  const models::DecoderConfig config = tiny(models::DecoderFamily::kQwen2, false);
  const auto decoder = models::build_decoder(config);
  models::init_on_device(*decoder, {.seed = 3});
  models::write_hf_folder(folder / "decoder", config, tensors_of(*decoder));
  const io::HfWeights weights(folder / "decoder");
  const auto filled = [&](const io::HfWeights& from, std::uint64_t seed) {
    const auto model = models::make_reward_model(models::build_decoder(config));
    models::check_weights(*model, from);
    models::init_on_device(*model, {.seed = seed, .load = [&](nn::Module& of) { models::load_weights(of, from); }});
    std::map<std::string, std::vector<double>> values;
    for (const auto& [path, tensor] : tensors_of(*model)) values[path] = tensor.to_vector<double>();
    return std::pair{model, values};
  };
  const auto [first, of_first] = filled(weights, 3);
  const auto [other, of_other] = filled(weights, 4);
  for (const auto& [path, tensor] : tensors_of(*decoder)) {
    if (path != "lm_head.weight") {
      EXPECT_EQ(of_first.at(path), tensor.to_vector<double>()) << path;
    }
  }
  const auto& head = of_first.at("score.weight");
  EXPECT_NE(head, of_other.at("score.weight")) << "drawn by seed";
  double most = 0;
  for (const double value : head) most = std::max(most, std::abs(value));
  EXPECT_GT(most, 1e-3);
  EXPECT_LT(most, 0.02 * 6);
  models::write_hf_folder(folder / "reward", models::reward_config(models::to_json(config), 7), false,
                          tensors_of(*first), models::ExpertSpelling::kPerExpert);
  const auto [again, of_again] = filled(io::HfWeights(folder / "reward"), 99);
  EXPECT_EQ(of_again, of_first);
  // The decoder does not take a reward model for one of its own.
  const auto plain = models::build_decoder(config);
  EXPECT_THAT(test::message_of<ConfigError>([&] { models::check_weights(*plain, io::HfWeights(folder / "reward")); }),
              HasSubstr("tensor 'lm_head.weight' [32, 8] is missing"));
  const auto json = nlohmann::json::parse(test::read_file(folder / "reward" / "config.json"));
  EXPECT_EQ(json.at("architectures").at(0), "Qwen2ForSequenceClassification");
  EXPECT_EQ(json.at("id2label"), nlohmann::json({{"0", "LABEL_0"}}));
  EXPECT_EQ(json.at("label2id"), nlohmann::json({{"LABEL_0", 0}}));
  EXPECT_EQ(json.at("pad_token_id"), 7);
}

TEST(RewardModel, TrainsItsHeadWholeBesideAdapters) {
  const test::OneRank rank;
  const auto model = models::make_reward_model(models::build_decoder(tiny(models::DecoderFamily::kQwen2, true)));
  models::LoraOptions options;
  options.r = 2;
  options.target_modules = {"all-linear"};
  options.where = "--lora-target-modules";
  const auto lora = models::add_lora(*model, options);
  EXPECT_THAT(lora->saved, ElementsAre("score"));
  EXPECT_TRUE(lora->is_tuned("score.weight"));
  EXPECT_FALSE(lora->is_adapter("score.weight"));
  const auto json = nlohmann::json::parse(models::adapter_config_json(*lora, ""));
  EXPECT_EQ(json.at("task_type"), "SEQ_CLS");
  EXPECT_EQ(json.at("modules_to_save"), nlohmann::json({"score"}));
}

class NoDecoder final : public nn::Module {
 public:
  std::string_view type_name() const override { return "NoDecoder"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return args.tensor(0); }
};

TEST(RewardModel, NeedsAnOutputLayer) {
  EXPECT_EQ(
      test::message_of<ConfigError>([] { models::make_reward_model(std::make_shared<NoDecoder>()); }),
      "NoDecoder is not a decoder with an output layer, which the head of a reward model replaces; use one of the "
      "families Qwen2, Qwen3, Llama and GPT-2");
}

}  // namespace
}  // namespace loom::objective
