// Promise: an optimizer's state goes out and in by name and box, and training goes on bit for bit; groups have their
//          own learning rate and decay; what does not fit is refused before anything changes.
#include "engine/nn/optim/optimizer.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "engine/nn/optim/adamw.h"
#include "tests/nn/toy_modules.h"
#include "tests/support/boxes.h"

namespace loom::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr AdamWOptions kOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};

std::unique_ptr<test::ToyModel> fresh_model() {
  auto model = std::make_unique<test::ToyModel>(11, 8, 2, 1);
  materialize(*model);
  init_weights(*model, 3);
  return model;
}

double train(Module& model, Optimizer& optimizer, int step) {
  const Tensor loss =
      model(test::ids({1 + step, 2, 3}).view({1, 3}), test::ids({2, 3, 4 + step}).view({1, 3})).tensor();
  autograd::backward(loss);
  optimizer.step();
  optimizer.zero_grad();
  return loss.item();
}

std::vector<std::vector<float>> weights(const Module& model) {
  std::vector<std::vector<float>> values;
  for (const Tensor& parameter : model.parameters()) values.push_back(parameter.to_vector<float>());
  return values;
}

std::vector<std::string> paths(const ParameterGroup& group) {
  std::vector<std::string> found;
  for (const OptimizedParameter& parameter : group.parameters) found.push_back(parameter.path);
  return found;
}

TEST(ParameterGroups, AreOneAsAChoiceTwo) {
  test::OneRank rank;
  const auto model = fresh_model();
  model->find("norm")->own_parameters()[0]->value.set_requires_grad(false);
  const ParameterGroups one = make_parameter_groups(*model);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].parameters.size(), 10u);  // 11, of which the frozen norm is left out
  const ParameterGroups two = make_parameter_groups(*model, {.no_decay_on_norms_and_biases = true});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_THAT(paths(two[0]), ElementsAre("embed_tokens.weight", "layers.0.qkv_proj.weight", "layers.0.o_proj.weight",
                                         "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight",
                                         "layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(paths(two[1]), ElementsAre("layers.0.input_layernorm.weight", "layers.0.qkv_proj.bias",
                                         "layers.0.post_attention_layernorm.weight", "layers.0.mlp.down_proj.bias"));
}

TEST(ParameterGroups, HaveTheirOwnDecayAndLearningRate) {
  test::OneRank rank;
  class Two final : public Module {
   public:
    Two() {
      register_parameter("matrix", {1, 1}, Init::ones());
      register_parameter("bias", {1}, Init::ones());
    }
    std::string_view type_name() const override { return "Two"; }

   protected:
    Value forward(const Args&) override { return {}; }
  };
  Two two;
  materialize(two);
  init_weights(two, 1);
  AdamW optimizer(make_parameter_groups(two, {.weight_decay = 0.5, .no_decay_on_norms_and_biases = true}), kOptions);
  optimizer.groups()[0].lr = 0.25;
  EXPECT_EQ(optimizer.groups()[1].lr, 0.05);
  for (const Tensor& parameter : optimizer.parameters())
    parameter.set_grad(Tensor::zeros(parameter.shape(), DType::kF32));
  optimizer.step();  // no gradient: decay alone, 1 - lr * decay
  EXPECT_EQ(optimizer.parameters()[0].item(), 0.875);
  EXPECT_EQ(optimizer.parameters()[1].item(), 1);
  optimizer.set_lr(0.5);
  EXPECT_EQ(optimizer.groups()[0].lr, 0.5);
  EXPECT_EQ(optimizer.groups()[1].lr, 0.5);
}

// Only as many as there are, of matrices first, then by decay, then as parameters come.
TEST(ParameterGroups, FollowARuleOfEachParameter) {
  test::OneRank rank;
  const auto model = fresh_model();
  const auto rule_of = [](const std::string& path) -> ParameterRule {
    return {.decays = path.find("norm") == std::string::npos, .lr_mult = path.ends_with("bias") ? 0.5 : 1};
  };
  // A decay of 0 for those that decay does not mix them with the others.
  const ParameterGroups groups =
      make_parameter_groups(*model, {.weight_decay = 0, .hidden_matrices_apart = true, .rule_of = rule_of});
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_TRUE(groups[0].hidden_matrices);
  EXPECT_THAT(paths(groups[1]), ElementsAre("embed_tokens.weight"));
  EXPECT_THAT(paths(groups[2]), ElementsAre("layers.0.qkv_proj.bias", "layers.0.mlp.down_proj.bias"));
  EXPECT_THAT(paths(groups[3]), ElementsAre("layers.0.input_layernorm.weight",
                                            "layers.0.post_attention_layernorm.weight", "norm.weight"));
  EXPECT_EQ(groups[2].lr_mult, 0.5);
  AdamW optimizer(groups, kOptions);
  EXPECT_EQ(optimizer.groups()[2].lr, 0.025);
  EXPECT_EQ(optimizer.groups()[3].weight_decay, 0);
}

TEST(ParameterGroups, RefuseGatheredParameters) {
  test::OneRank rank;
  const auto model = fresh_model();
  model->find("norm")->own_parameters()[0]->holds = SlotHolds::kGathered;
  EXPECT_THAT([&] { make_parameter_groups(*model); },
              ThrowsMessage<ConfigError>(StartsWith("make_parameter_groups: parameter 'norm.weight' is gathered now")));
}

TEST(OptimizerState, HasTorchsNamesAndTheBoxesOfTheParameters) {
  test::OneRank rank;
  const auto model = fresh_model();
  AdamW optimizer(make_parameter_groups(*model), kOptions);
  EXPECT_TRUE(optimizer.state_dict().parameters.empty());
  train(*model, optimizer, 0);
  const OptimizerState state = optimizer.state_dict();
  EXPECT_EQ(state.parameters.size(), 11u);
  const ParameterState& norm = state.parameters.at("norm.weight");
  ASSERT_EQ(norm.size(), 3u);
  EXPECT_EQ(std::get<double>(norm.at("step")), 1);
  EXPECT_EQ(std::get<LocalTensor>(norm.at("exp_avg")).shard, ShardSpec::whole({8}));
  EXPECT_EQ(std::get<LocalTensor>(norm.at("exp_avg_sq")).value.shape(), (Shape{8}));
  const std::map<std::string, double> options{
      {"lr", 0.05}, {"weight_decay", 0.1}, {"beta1", 0.8}, {"beta2", 0.95}, {"eps", 1e-6}};
  EXPECT_EQ(state.groups.at(0).options, options);
}

TEST(OptimizerState, TrainingGoesOnBitForBit) {
  test::OneRank rank;
  for (const bool no_decay : {false, true}) {
    const GroupOptions groups{.no_decay_on_norms_and_biases = no_decay};
    const auto whole_run = fresh_model(), first = fresh_model(), second = fresh_model();
    AdamW uninterrupted(make_parameter_groups(*whole_run, groups), kOptions);
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      if (step == 1) uninterrupted.set_lr(0.03);
      losses.push_back(train(*whole_run, uninterrupted, step));
    }
    OptimizerState saved;
    {
      AdamW optimizer(make_parameter_groups(*first, groups), kOptions);
      train(*first, optimizer, 0);
      optimizer.set_lr(0.03);
      train(*first, optimizer, 1);
      saved = host_copies(optimizer.state_dict());
    }
    for (std::size_t i = 0; i < second->parameters().size(); ++i) {
      second->parameters()[i].copy_from(first->parameters()[i]);
    }
    AdamW optimizer(make_parameter_groups(*second, groups), AdamWOptions{});  // options come with the state
    optimizer.load_state_dict(saved);
    for (int step = 2; step < 5; ++step) {
      EXPECT_EQ(train(*second, optimizer, step), losses[static_cast<std::size_t>(step)]);
    }
    EXPECT_EQ(weights(*second), weights(*whole_run));
  }
}

TEST(OptimizerState, LoadedTakesTheMemoryOfTheFirstStep) {
  test::OneRank rank;
  const auto bytes = [&] { return rank.stats().by_category[device::MemCategory::kOptimizerState]; };
  const auto model = fresh_model();
  auto first = std::make_unique<AdamW>(make_parameter_groups(*model), kOptions);
  train(*model, *first, 0);
  const std::int64_t stepped = bytes();
  const OptimizerState saved = host_copies(first->state_dict());
  first.reset();
  EXPECT_EQ(bytes(), 0);
  AdamW second(make_parameter_groups(*model), kOptions);
  second.load_state_dict(saved);
  EXPECT_EQ(bytes(), stepped);
  train(*model, second, 1);
  EXPECT_EQ(bytes(), stepped);
}

TEST(OptimizerState, AParameterThatIsNotInItHasNone) {
  test::OneRank rank;
  const auto model = fresh_model();
  AdamW optimizer(make_parameter_groups(*model), kOptions);
  train(*model, optimizer, 0);
  OptimizerState state = host_copies(optimizer.state_dict());
  state.parameters.erase("norm.weight");
  optimizer.load_state_dict(state);
  EXPECT_FALSE(optimizer.state_dict().parameters.contains("norm.weight"));
  train(*model, optimizer, 1);
  EXPECT_EQ(std::get<double>(optimizer.state_dict().parameters.at("norm.weight").at("step")), 1);
}

TEST(OptimizerState, OfTheWholeLoadsIntoABox) {
  test::OneRank rank;
  Linear whole(6, 4, false, 0.5), part(6, 4, false, 0.5);
  materialize(whole);
  test::give_box(part.weight, {1, 2}, {2, 3});
  AdamW all(make_parameter_groups(whole), kOptions), own(make_parameter_groups(part), kOptions);
  whole.weight.value.set_grad(Tensor::from(test::normals(24, 5), {4, 6}, DType::kF32));
  all.step();
  own.load_state_dict(all.state_dict());
  for (const std::string name : {"exp_avg", "exp_avg_sq"}) {
    const auto tensor_of = [&](const Optimizer& optimizer) {
      return std::get<LocalTensor>(optimizer.state_dict().parameters.at("weight").at(name));
    };
    EXPECT_EQ(tensor_of(own).value.to_vector<float>(),
              test::box_of(tensor_of(all).value.to_vector<float>(), {4, 6}, {1, 2}, {2, 3}));
    EXPECT_EQ(tensor_of(own).shard.offset, (Offset{1, 2}));
  }
}

TEST(OptimizerState, RefusesWhatDoesNotFit) {
  test::OneRank rank;
  const auto model = fresh_model();
  AdamW optimizer(make_parameter_groups(*model), kOptions);
  train(*model, optimizer, 0);
  const OptimizerState good = host_copies(optimizer.state_dict());
  const auto refusal = [&](const std::function<void(OptimizerState&)>& spoil) {
    OptimizerState state = good;
    spoil(state);
    try {
      optimizer.load_state_dict(state);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  EXPECT_EQ(refusal([](OptimizerState& s) { s.parameters["norm.weights"] = s.parameters["norm.weight"]; }),
            "load_state_dict of AdamW: it has no parameter 'norm.weights'; the nearest is 'norm.weight'");
  EXPECT_EQ(refusal([](OptimizerState& s) { s.parameters["norm.weight"].erase("exp_avg"); }),
            "load_state_dict of AdamW: the state of 'norm.weight' is (exp_avg_sq, step); it takes the tensors exp_avg, "
            "exp_avg_sq and the numbers step");
  EXPECT_EQ(refusal([](OptimizerState& s) {
              s.parameters["norm.weight"]["exp_avg"] =
                  LocalTensor{Tensor::zeros({4}, DType::kF32), ShardSpec::rows_from({8}, 4)};
            }),
            "load_state_dict of AdamW: this rank has [8] at (0) of [8] of 'norm.weight', and its exp_avg was given as "
            "[4] at (4) of [8]");
  EXPECT_EQ(refusal([](OptimizerState& s) { s.groups.emplace_back(); }),
            "load_state_dict of AdamW: the state has 2 parameter groups, and this optimizer has 1; group them alike");
  EXPECT_EQ(refusal([](OptimizerState& s) { s.groups[0].paths.pop_back(); }),
            "load_state_dict of AdamW: parameter group 0 holds other parameters than in the state (11 and 10); group "
            "them alike");
  EXPECT_EQ(refusal([](OptimizerState& s) { s.groups[0].options.erase("beta1"); }),
            "load_state_dict of AdamW: parameter group 0 has no 'beta1' in the state");
  EXPECT_EQ(refusal([](OptimizerState& s) { s.groups.clear(); }), "taken");
}

TEST(OptimizerState, NeedsPaths) {
  test::OneRank rank;
  const AdamW optimizer({test::leaf({1, 2})}, kOptions);
  EXPECT_THAT(
      [&] { optimizer.state_dict(); },
      ThrowsMessage<ConfigError>(StrEq("state_dict of AdamW: a parameter [2] has no path; make the optimizer from "
                                       "make_parameter_groups(model)")));
}

}  // namespace
}  // namespace loom::nn
