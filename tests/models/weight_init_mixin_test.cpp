// Promise: WeightInitMixin writes every parameter by the class of its module, children first, without grad; an override
//          replaces the rule for modules of the user's own.
// World:   1 and 3 ranks as threads; OwnModel of own_models.h.
#include "models/mixin/weight_init_mixin.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/tensor/autograd.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "tests/models/own_models.h"
#include "tests/support/files.h"
#include "tests/support/logged.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using test::own_config;
using ::testing::Each;
using ::testing::ElementsAre;

class Initialised : public test::OwnModel, public WeightInitMixin {};

std::vector<float> values_of(nn::Module& model, std::string_view path) {
  for (auto& [name, slot] : model.named_slots()) {
    if (name == path) return slot->value.to_vector<float>();
  }
  return {};
}

TEST(InitWeights, FollowsTheClassOfTheModule) {
  test::run_world(1, [](RankContext&, comm::World&) {
    Initialised model;
    init_on_device(model, {.seed = 3});
    EXPECT_THAT(values_of(model, "norm.weight"), Each(1.0f));
    EXPECT_THAT(values_of(model, "head.bias"), Each(0.0f));
    double squares = 0;
    int count = 0;
    for (const char* path : {"embed.weight", "layers.0.up.weight", "layers.1.up.weight", "layers.2.up.weight"}) {
      for (const float v : values_of(model, path)) squares += double{v} * v;
      count += 36;
    }
    // 144 draws of N(0, 0.02^2): the estimate's standard error is 0.02 / sqrt(288).
    EXPECT_NEAR(std::sqrt(squares / count), 0.02, 4 * 0.02 / std::sqrt(288.0));
  });
}

// Embeddings and norms under a name of their own, and parameters without a module.
class Mixed final : public nn::Module, public WeightInitMixin {
 public:
  Mixed()
      : token(register_module("token", std::make_shared<nn::Embedding>(5, 4, 1.0))),
        group_norm(register_module("group_norm", std::make_shared<nn::LayerNorm>(4, 1e-5))),
        direct(register_parameter("scale_weight", {7}, nn::Init::ones())),
        offset(register_parameter("offset_bias", {7}, nn::Init::ones())),
        other(register_parameter("gate", {7}, nn::Init::ones())) {}
  std::string_view type_name() const override { return "Mixed"; }
  nn::Embedding& token;
  nn::LayerNorm& group_norm;
  nn::ParamSlot &direct, &offset, &other;

 protected:
  nn::Value forward(const nn::Args& args) override { return args.tensor(0); }
};

bool is_drawn(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return v != 0 && std::abs(v) < 0.12; });
}

TEST(InitWeights, GoesByTheNameOfWhatIsLeft) {
  test::run_world(1, [](RankContext&, comm::World&) {
    Mixed model;
    init_on_device(model, {.seed = 3});
    EXPECT_TRUE(is_drawn(model.token.weight.value.to_vector<float>()));  // with its padding row
    EXPECT_THAT(model.group_norm.weight.value.to_vector<float>(), Each(1.0f));
    EXPECT_THAT(model.group_norm.bias.value.to_vector<float>(), Each(0.0f));
    EXPECT_TRUE(is_drawn(model.direct.value.to_vector<float>()));
    EXPECT_THAT(model.offset.value.to_vector<float>(), Each(0.0f));
    EXPECT_TRUE(is_drawn(model.other.value.to_vector<float>()));
  });
}

// Notes the order of modules.
class Noting final : public test::OwnModel, public WeightInitMixin {
 public:
  Noting() : OwnModel(1) {}
  std::vector<std::string> order;
  bool grad_seen = false;

 protected:
  void _init_weights(nn::Module& module, double std) override {
    order.emplace_back(module.type_name());
    grad_seen = grad_seen || autograd::grad_enabled();
    WeightInitMixin::_init_weights(module, std);
    if (&module == &head) ones_(*module.own_parameters().front());
    if (&module == &embed) normal_(*module.own_parameters().front(), 5.0);
  }
};

TEST(InitWeights, VisitsChildrenFirstAndEachModuleOnceWithoutGrad) {
  test::run_world(1, [](RankContext&, comm::World&) {
    Noting model;
    init_on_device(model, {.seed = 3});
    EXPECT_THAT(model.order,
                ElementsAre("Linear", "RMSNorm", "Linear", "OwnBlock", "ModuleList", "RMSNorm", "Linear", "OwnModel"));
    EXPECT_FALSE(model.grad_seen);
  });
}

TEST(InitWeights, AnOverrideHasTheLastWord) {
  test::run_world(1, [](RankContext&, comm::World&) {
    Noting model;
    init_on_device(model, {.seed = 3});
    EXPECT_THAT(values_of(model, "head.weight"), Each(1.0f));
    EXPECT_FALSE(is_drawn(values_of(model, "embed.weight")));  // of standard deviation 5
  });
}

TEST(InitWeights, WhatALayerWasRegisteredWithIsNotOverruledInSilence) {
  const test::Logged logged;
  test::run_world(2, [](RankContext&, comm::World& world) {
    Initialised model;  // embedding, head and three blocks have weights of std 0.5
    model.fully_shard(world, own_config("sharding_size: auto\n"), {.weights = {.seed = 9}});
  });
  EXPECT_EQ(
      logged.text(),
      "warning: WeightInitMixin: 'embed.weight' is registered with N(0, 0.5^2), and N(0, 0.02^2) is written (the "
      "first of 5 such parameters); override _init_weights() to keep the registered values, or leave the mixin out: "
      "each parameter is then drawn as it is registered\n");
}

// Its layers say what the rules say.
class AsTheRules final : public nn::Module, public WeightInitMixin {
 public:
  AsTheRules() {
    register_module("up", std::make_shared<nn::Linear>(4, 4, true, WeightInitMixin::kStd));
    register_module("norm", std::make_shared<nn::LayerNorm>(4, 1e-5));
  }
  std::string_view type_name() const override { return "AsTheRules"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return args.tensor(0); }
};

TEST(InitWeights, NothingIsLoggedWhereRulesAndLayersAgree) {
  const test::Logged logged;
  test::run_world(1, [](RankContext&, comm::World&) {
    AsTheRules model;
    init_on_device(model, {.seed = 3});
  });
  EXPECT_EQ(logged.text(), "");
}

TEST(InitWeights, EveryRankDrawsItsRowsOfTheSameWhole) {
  const auto run = [](int ranks, const std::string& yaml) {
    return test::of_each_rank(ranks, [&](RankContext&, comm::World& world) {
      Initialised model;
      model.fully_shard(world, own_config(yaml), {.weights = {.seed = 9}});
      std::vector<std::vector<float>> values;
      sharding::for_each_full_parameter(
          model, [&](const std::string&, const Tensor& full) { values.push_back(full.to_vector<float>()); });
      return values;
    });
  };
  const auto alone = run(1, "sharding_size: 1\n").front();
  EXPECT_THAT(run(3, test::kWrapLayers), Each(alone));
  EXPECT_THAT(run(4, "sharding_size: 2\n"), Each(alone));
}

TEST(InitWeights, AgainGivesTheSameValues) {
  test::run_world(1, [](RankContext&, comm::World&) {
    Initialised model;
    init_on_device(model, {.seed = 3});
    const auto first = values_of(model, "layers.1.up.weight");
    model.init_weights(3);
    EXPECT_EQ(values_of(model, "layers.1.up.weight"), first);
    model.init_weights(4);
    EXPECT_NE(values_of(model, "layers.1.up.weight"), first);
  });
}

class NoModule final : public WeightInitMixin {};

class WritesEarly final : public test::OwnModel, public WeightInitMixin {
 public:
  void write() { normal_(embed.weight, 1.0); }
};

TEST(InitWeights, SaysWhatAModelOwesToIt) {
  test::run_world(1, [](RankContext&, comm::World&) {
    NoModule none;
    EXPECT_EQ(test::message_of<ConfigError>([&] { none.init_weights(1); }),
              "a class inherits WeightInitMixin without nn::Module; write 'class M : public nn::Module, public "
              "WeightInitMixin'");
    WritesEarly early;
    EXPECT_EQ(test::message_of<ConfigError>([&] { early.write(); }),
              "'weight' is written by the mixin outside of init_weights(); write it in _init_weights()");
  });
}

}  // namespace
}  // namespace loom::models
