// Promise: the loss of a model with output_router_logits is its cross-entropy and its routers' loss, in every form of
//          the next token's loss, with the same gradients however its layers are recomputed or cut; other losses refuse
//          it.
// World:   one rank; a Qwen3-MoE of 4 layers, of which layer 1 is dense.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/nn/chunk_mbs.h"
#include "engine/nn/init.h"
#include "engine/objective/preference_step.h"
#include "engine/objective/reward_step.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "tests/support/files.h"
#include "tests/support/one_rank.h"

namespace loom::objective {
namespace {

std::shared_ptr<nn::Module> moe(const std::string& output_router_logits = "true") {
  const auto model = models::build_decoder(models::parse_decoder_json(
      R"({"model_type": "qwen3_moe", "vocab_size": 32, "num_hidden_layers": 4, "hidden_size": 8, "intermediate_size": 12,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16,
          "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "mlp_only_layers": [1],
          "initializer_range": 0.5, "router_aux_loss_coef": 0.25, "output_router_logits": )" +
          output_router_logits + "}",
      "config.json"));
  nn::materialize(*model);
  nn::init_weights(*model, 7);
  return model;
}

data::Batch batch() {
  std::vector<std::int32_t> ids, targets;
  for (std::int32_t i = 0; i < 16; ++i) {
    ids.push_back(i * 5 % 32);
    targets.push_back((i + 1) * 5 % 32);
  }
  return {{{"input_ids", Tensor::from(ids, {2, 8})}, {"targets", Tensor::from(targets, {2, 8})}}};
}

struct Step {
  double loss = 0;
  std::map<std::string, double> reports;
  std::map<std::string, std::vector<double>> gradients;
};

Step step_of(nn::Module& model, const data::ForwardStep& forward = data::next_token_step, std::int64_t chunk = 0) {
  data::DataIterator data(batch());
  data.set_objective(chunk, nullptr);
  data::ForwardResult result = forward(data, model);
  data::Loss loss = result.loss_func(std::move(result.output));
  autograd::backward(loss.loss);
  Step step{loss.loss.item(), {loss.reports.begin(), loss.reports.end()}, {}};
  for (auto& [path, parameter] : model.named_parameters()) step.gradients[path] = parameter.grad().to_vector<double>();
  return step;
}

TEST(ALossOfRouters, IsAddedToTheCrossEntropyWithItsCoefficient) {
  const test::OneRank rank;
  const Step plain = step_of(*moe("false")), balanced = step_of(*moe());
  EXPECT_TRUE(plain.reports.empty());
  EXPECT_EQ(balanced.reports.at("cross_entropy"), plain.loss);
  EXPECT_GT(balanced.reports.at("router_aux_loss"), 2.0);  // at least k, of balanced loads
  EXPECT_FLOAT_EQ(static_cast<float>(balanced.loss),
                  static_cast<float>(plain.loss + 0.25 * balanced.reports.at("router_aux_loss")));
  EXPECT_NE(balanced.gradients.at("model.layers.3.mlp.gate.weight"),
            plain.gradients.at("model.layers.3.mlp.gate.weight"));
  EXPECT_EQ(balanced.gradients.at("lm_head.weight"), plain.gradients.at("lm_head.weight"));
}

TEST(ALossOfRouters, IsThatOfEveryFormOfTheNextTokensLoss) {
  const test::OneRank rank;
  const Step whole = step_of(*moe());
  for (const Step& step :
       {step_of(*moe(), data::next_token_step, 3), step_of(*moe(), data::next_token_step_per_sample)}) {
    EXPECT_NEAR(step.loss, whole.loss, 1e-6);
    EXPECT_EQ(step.reports.at("router_aux_loss"), whole.reports.at("router_aux_loss"));
  }
}

TEST(ALossOfRouters, HasTheSameGradientsWhereLayersAreRecomputed) {
  using sharding::RecomputedPart;
  const test::OneRank rank;
  const Step kept = step_of(*moe());
  for (const sharding::RecomputedModule& choice :
       {sharding::RecomputedModule{.path = "model.layers.2", .use_reentrant = true},
        sharding::RecomputedModule{.path = "model.layers.2", .use_reentrant = false},
        sharding::RecomputedModule{.path = "model.layers.3.mlp", .use_reentrant = false},
        sharding::RecomputedModule{.path = "model.layers.0", .use_reentrant = true, .layers = 3},
        sharding::RecomputedModule{.path = "model.layers.1", .use_reentrant = false, .layers = 3},
        sharding::RecomputedModule{.path = "model.layers.2", .part = RecomputedPart::kNorms},
        sharding::RecomputedModule{.path = "model.layers.2", .part = RecomputedPart::kActivationFunction}}) {
    const auto model = moe();
    models::recompute_module(*model, choice);
    const Step step = step_of(*model);
    EXPECT_EQ(step.loss, kept.loss) << sharding::text_of(choice);
    EXPECT_EQ(step.gradients, kept.gradients) << sharding::text_of(choice);
  }
}

TEST(ALossOfRouters, IsOfAllRowsOfALayerThatIsCut) {
  const test::OneRank rank;
  const Step whole = step_of(*moe());
  const auto model = moe();
  nn::chunk_mbs(*model->find("model.layers.2"), {.path = "model.layers.2", .chunk_mbs = 1, .chunk_arg_indexs = {0}});
  const Step cut = step_of(*model);
  EXPECT_EQ(cut.reports.at("router_aux_loss"), whole.reports.at("router_aux_loss"));
  EXPECT_NEAR(cut.loss, whole.loss, 1e-6);
}

TEST(ALossOfRouters, IsRefusedByLossesThatDoNotAddIt) {
  const test::OneRank rank;
  const auto refusal = [](const data::ForwardStep& forward) {
    const auto model = moe();
    data::DataIterator data(batch());
    return test::message_of<ConfigError>([&] { forward(data, *model); });
  };
  const std::string model =
      "Qwen3MoeForCausalLM has a load-balancing loss of its routers (output_router_logits, router_aux_loss_coef), "
      "and ";
  const std::string advice = " does not add it; set output_router_logits to false in its configuration";
  EXPECT_EQ(refusal(preference_step({})), model + "a preference loss" + advice);
  EXPECT_EQ(refusal(process_reward_step({})), model + "the loss of a reward model" + advice);
}

}  // namespace
}  // namespace loom::objective
