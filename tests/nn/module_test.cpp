// Promise: modules are a tree with Hugging Face paths; tied slots are one parameter; hooks run in order around forward.
#include "engine/nn/module.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "tests/nn/toy_modules.h"

namespace loom::nn {
namespace {

using test::constant;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

class Doubled final : public Module {
 public:
  std::string_view type_name() const override { return "Doubled"; }

 protected:
  Value forward(const Args& args) override { return ops::scale(args.tensor(0), 2); }
};

template <class Named>
std::vector<std::string> names(const Named& named) {
  std::vector<std::string> found;
  for (const auto& [name, value] : named) found.push_back(name);
  return found;
}

TEST(ModuleTree, PathsAreInPreOrderOfRegistration) {
  test::OneRank rank;
  test::ToyModel model(11, 8, 2, 1);
  EXPECT_THAT(
      names(model.named_modules()),
      ElementsAre("", "embed_tokens", "layers", "layers.0", "layers.0.input_layernorm", "layers.0.qkv_proj",
                  "layers.0.o_proj", "layers.0.post_attention_layernorm", "layers.0.mlp", "layers.0.mlp.gate_proj",
                  "layers.0.mlp.up_proj", "layers.0.mlp.down_proj", "norm", "lm_head"));
  EXPECT_THAT(
      names(model.named_parameters()),
      ElementsAre("embed_tokens.weight", "layers.0.input_layernorm.weight", "layers.0.qkv_proj.weight",
                  "layers.0.qkv_proj.bias", "layers.0.o_proj.weight", "layers.0.post_attention_layernorm.weight",
                  "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight", "layers.0.mlp.down_proj.weight",
                  "layers.0.mlp.down_proj.bias", "norm.weight"));
}

TEST(ModuleTree, FindsByPath) {
  test::OneRank rank;
  test::ToyModel model(11, 8, 2, 2);
  EXPECT_EQ(model.find(""), &model);
  EXPECT_EQ(model.find("layers.1.mlp")->type_name(), "Mlp");
  EXPECT_EQ(model.find("layers.2"), nullptr);
  EXPECT_EQ(model.find("layers.0.mlp.gate"), nullptr);
}

TEST(ModuleTree, CountsTiedParametersOnce) {
  test::OneRank rank;
  test::ToyModel model(11, 8, 2, 0);  // 11 x 8 embedding, 8 of the norm; the head is the embedding
  EXPECT_EQ(model.parameter_count(), 88 + 8);
  EXPECT_THAT(names(model.named_slots()), ElementsAre("embed_tokens.weight", "norm.weight", "lm_head.weight"));
  EXPECT_EQ(model.parameters().size(), 2u);
}

TEST(ModuleTree, ParametersStartOnTheMetaDevice) {
  test::OneRank rank;
  test::ToyModel model(11, 8, 2, 2);
  for (const Tensor& parameter : model.parameters()) {
    EXPECT_TRUE(parameter.is_meta());
    EXPECT_TRUE(parameter.requires_grad());
  }
  EXPECT_EQ(rank.bytes(), 0);
}

TEST(ModuleTree, TiedSlotsStayOneParameterThroughMaterialiseAndBackward) {
  test::OneRank rank;
  test::ToyModel model(5, 4, 1, 0);
  materialize(model);
  init_weights(model, 1);
  const auto slots = model.named_slots();
  EXPECT_TRUE(slots[0].second->value.is_same(slots[2].second->value));
  autograd::backward(model(test::ids({1}), test::ids({2})).tensor());
  // The head's share of row j is (p_j - [j = 2]) h: no row is zero, and they sum to zero. What is left over is the
  // embedding's.
  const std::vector<double> gradient = test::grad(slots[0].second->value);
  double left_over = 0;
  for (std::size_t column = 0; column < 4; ++column) {
    double sum = 0;
    for (std::size_t row = 0; row < 5; ++row) {
      EXPECT_NE(gradient[row * 4 + column], 0);
      sum += gradient[row * 4 + column];
    }
    left_over += std::abs(sum);
  }
  EXPECT_GT(left_over, 1e-3);
}

TEST(ModuleTree, NamesOfModulesHaveNoDots) {
  class Bad final : public Module {
   public:
    Bad() { register_module("a.b", std::make_shared<Doubled>()); }
    std::string_view type_name() const override { return "Bad"; }

   protected:
    Value forward(const Args&) override { return {}; }
  };
  EXPECT_THAT([] { Bad(); },
              ThrowsMessage<ModelError>(
                  StrEq("a module is registered as 'a.b'; give it a name of at least one character without dots")));
}

TEST(ModuleTree, NamesAreThoseOfOneChildAndOneParameter) {
  class TwoChildren final : public Module {
   public:
    TwoChildren() {
      register_module("a", std::make_shared<Doubled>());
      register_module("a", std::make_shared<ModuleList>());
    }
    std::string_view type_name() const override { return "TwoChildren"; }

   protected:
    Value forward(const Args&) override { return {}; }
  };
  class TwoParameters final : public Module {
   public:
    TwoParameters() {
      register_tied("bias", register_parameter("weight", {2}, Init::ones()));
      register_parameter("weight", {3}, Init::ones());
    }
    std::string_view type_name() const override { return "TwoParameters"; }

   protected:
    Value forward(const Args&) override { return {}; }
  };
  EXPECT_THAT([] { TwoChildren(); },
              ThrowsMessage<ModelError>(StrEq(
                  "a module registers two children as 'a', Doubled and ModuleList; give each a name of its own")));
  EXPECT_THAT(
      [] { TwoParameters(); },
      ThrowsMessage<ModelError>(StrEq("a module registers two parameters as 'weight'; give each a name of its own")));
}

TEST(ModuleTree, AListCannotBeCalled) {
  ModuleList list;
  EXPECT_FALSE(list.has_forward());
  EXPECT_THAT([&] { list(); },
              ThrowsMessage<ModelError>(StrEq("a ModuleList was called; it has no forward: call the modules in it")));
}

TEST(ModuleHooks, RunInRegistrationOrderAroundForward) {
  test::OneRank rank;
  Doubled module;
  std::vector<std::string> order;
  const auto note = [&](const std::string& word) { order.push_back(word); };
  module.register_pre_hook([&](Module&, Args&) { note("pre 1"); });
  module.register_pre_hook([&](Module&, Args&) { note("pre 2"); });
  module.register_pre_hook([&](Module&, Args&) { note("pre 0"); }, true);
  module.register_post_hook([&](Module&, Value v) {
    note("post 1");
    return v;
  });
  module.register_post_hook([&](Module&, Value v) {
    note("post 2");
    return v;
  });
  module(constant({1}));
  EXPECT_THAT(order, ElementsAre("pre 0", "pre 1", "pre 2", "post 1", "post 2"));
}

TEST(ModuleHooks, MayReplaceArgumentsAndResult) {
  test::OneRank rank;
  Doubled module;
  module.register_pre_hook(
      [](Module&, Args& args) { args.map_tensors([](const Tensor& x) { return ops::add(x, constant({1})); }); });
  module.register_post_hook([](Module&, Value v) -> Value { return ops::scale(v, 10); });
  EXPECT_EQ(module(constant({3})).tensor().item(), (3 + 1) * 2 * 10);
}

TEST(ModuleHooks, SeeTheModuleTheyBelongTo) {
  test::OneRank rank;
  Doubled module;
  Module* seen = nullptr;
  module.register_pre_hook([&](Module& m, Args&) { seen = &m; });
  module(constant({1}));
  EXPECT_EQ(seen, &module);
}

}  // namespace
}  // namespace loom::nn
