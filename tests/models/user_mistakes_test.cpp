// Promise: what users get wrong in a model of their own is an error that names the module and says what to do.
// World:   1 and 2 ranks as threads; variations of OwnModel. Freezing after sharding: fsdp2_mixin_test; tensors never
//          written: meta_init_test; a struct that is no value: struct_result.cpp, which must not compile.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/fully_shard.h"
#include "tests/models/own_models.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using test::kOwnWidth;
using test::own_config;

Tensor input() { return test::toy_input(0, 4, kOwnWidth); }

template <class Model>
std::string refusal_on(int ranks, const std::string& yaml) {
  std::string message;
  test::run_world(ranks, [&](RankContext& context, comm::World& world) {
    Model model;
    fully_shard(model, world, own_config(yaml));
    const std::string text = test::message_of<ConfigError>([&] { model(input()); });
    if (context.rank() == 0) message = text;
  });
  return message;
}

// --- A parameter used outside of its module's forward

// Its head is computed from a block's weight.
class ReadsAnothersWeight final : public test::OwnModel {
 protected:
  nn::Value forward(const nn::Args& args) override {
    const nn::ParamSlot& weight = *layers[1].children()[1].second->own_parameters().front();
    return ops::linear(embed(args.tensor(0)), weight.value);
  }
};

const std::string kReadsAnothersWeight =
    "parameter 'layers.1.up.weight' was read by linear in the forward of OwnModel, where this rank has its rows only: "
    "it is whole while the forward of 'layers.1' runs; use it there and return the result, or leave 'layers.1' "
    "unwrapped, so that the group above owns it";

TEST(AParameterUsedOutsideItsModulesForward, IsNamedWithTheModuleThatReadsIt) {
  EXPECT_EQ(refusal_on<ReadsAnothersWeight>(2, test::kWrapLayers), kReadsAnothersWeight);
}

TEST(AParameterUsedOutsideItsModulesForward, IsRefusedOnOneRankToo) {
  EXPECT_EQ(refusal_on<ReadsAnothersWeight>(1, test::kWrapLayers), kReadsAnothersWeight);
}

TEST(AParameterUsedOutsideItsModulesForward, IsAllowedWhereTheGroupAboveOwnsIt) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    ReadsAnothersWeight model;
    fully_shard(model, world, own_config("sharding_size: auto\n"));
    EXPECT_NO_THROW(test::forward_backward(model, input()));
  });
}

// A bias of 6 of which 2 ranks have 3 each: the shapes do not fit either.
class AddsAnothersBias final : public test::OwnModel {
 protected:
  nn::Value forward(const nn::Args& args) override { return ops::add(embed(args.tensor(0)), head.bias->value); }
};

TEST(AParameterUsedOutsideItsModulesForward, IsNamedBeforeItsShapeIs) {
  EXPECT_EQ(refusal_on<AddsAnothersBias>(2, "sharding_size: auto\nsub_modules_to_wrap: [head]\n"),
            "parameter 'head.bias' was read by add in the forward of OwnModel, where this rank has its rows only: it "
            "is whole while the forward of 'head' runs; use it there and return the result, or leave 'head' unwrapped, "
            "so that the group above owns it");
}

TEST(AParameterUsedOutsideItsModulesForward, IsRefusedWithoutGradToo) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    ReadsAnothersWeight model;
    fully_shard(model, world, own_config(test::kWrapLayers));
    const autograd::NoGrad no_grad;
    EXPECT_EQ(test::message_of<ConfigError>([&] { model(input()); }), kReadsAnothersWeight);
  });
}

TEST(AShardBetweenSteps, IsThisRanksRowsAndMayBeComputedWith) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    test::OwnModel model;
    fully_shard(model, world, own_config(test::kWrapLayers));
    test::forward_backward(model, input());
    EXPECT_NO_THROW(ops::mean(model.head.weight.value));
  });
}

// --- A module made in forward

class MakesAModule final : public test::OwnModel {
 protected:
  nn::Value forward(const nn::Args& args) override {
    nn::Linear fresh(kOwnWidth, kOwnWidth, false, 0.02);
    return fresh(embed(args.tensor(0)));
  }
};

TEST(AModuleMadeInForward, IsNamedWithTheModuleThatMadeIt) {
  const std::string text =
      "a module with a parameter 'weight' was made in the forward of OwnModel: it would not be sharded, trained or "
      "saved; make modules in the constructor and keep them with register_module()";
  EXPECT_EQ(refusal_on<MakesAModule>(2, test::kWrapLayers), text);
  test::run_world(1, [&](RankContext&, comm::World&) {  // unsharded too
    MakesAModule model;
    init_on_device(model, {});
    EXPECT_EQ(test::message_of<ConfigError>([&] { model(input()); }), text);
  });
}

// In a block, and registered there, but too late.
class LateBlock final : public nn::Module {
 public:
  std::string_view type_name() const override { return "LateBlock"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    return register_module("late", std::make_shared<nn::Linear>(kOwnWidth, kOwnWidth, false, 0.02))(args.tensor(0));
  }
};
class RegistersLate final : public test::OwnModel {
 public:
  RegistersLate() : OwnModel(1) { layers.append(std::make_shared<LateBlock>()); }
};

TEST(AModuleMadeInForward, IsNamedWithThePathThatMadeItAlsoWhereItRegistersIt) {
  EXPECT_EQ(refusal_on<RegistersLate>(1, test::kWrapLayers),
            "a module with a parameter 'weight' was made in the forward of 'layers.1' (LateBlock): it would not be "
            "sharded, trained or saved; make modules in the constructor and keep them with register_module()");
}

// Made in the constructor, but kept beside the tree.
class ForgetsToRegister final : public test::OwnModel {
 protected:
  nn::Value forward(const nn::Args& args) override { return extra_(embed(args.tensor(0))); }

 private:
  nn::Linear extra_{kOwnWidth, kOwnWidth, false, 0.02};
};

TEST(AModuleThatIsNotRegistered, IsNamedWithTheModuleThatCallsIt) {
  EXPECT_EQ(refusal_on<ForgetsToRegister>(2, test::kWrapLayers),
            "a Linear without values was called in the forward of OwnModel, but is not part of OwnModel: its parameter "
            "'weight' would not be sharded, trained or saved; keep the module with register_module()");
}

// A helper that is kept out of the tree on purpose, with values of its own.
class HoldsATeacher final : public test::OwnModel {
 public:
  HoldsATeacher() { teacher_.weight.value = Tensor::full({kOwnWidth, kOwnWidth}, DType::kF32, 0.5); }

 protected:
  nn::Value forward(const nn::Args& args) override { return ops::add(embed(args.tensor(0)), teacher_(args.tensor(0))); }

 private:
  nn::Linear teacher_{kOwnWidth, kOwnWidth, false, 0.02};
};

TEST(AModuleOutsideTheModel, MayBeCalledWhenItHasValues) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    HoldsATeacher model;
    fully_shard(model, world, own_config(test::kWrapLayers));
    EXPECT_NO_THROW(test::forward_backward(model, input()));
  });
}

// --- Weights never initialised

TEST(WeightsNeverInitialised, AreNamedAtTheFirstForward) {
  test::run_world(1, [](RankContext&, comm::World&) {
    test::PlainModel model;
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { model(input()); }),
        "parameter 'embed.weight' has no values in the forward of 'embed' (Linear); initialise or load the weights "
        "before the first forward");
  });
}

TEST(WeightsNeverInitialised, AreNamedWithTheirGroupWhenSharded) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    test::PlainModel model;
    const auto plan =
        sharding::resolve_fsdp2(model, own_config(test::kWrapLayers), 1, sharding::GatherLayout::kBuffered);
    sharding::parallelize(model, plan, world);
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { model(input()); }),
        "parameter 'embed.weight' of group '(root)' has no values yet; initialise or load the weights before the first "
        "forward");
  });
}

// --- A tie across groups

class Tied : public test::OwnModel {
 public:
  Tied() { register_module("tied_head", std::make_shared<nn::TiedLinear>(embed.weight)); }
};

class TiedByStrategy final : public Tied {
 protected:
  void _fully_shard() override { set_fullyshard_modules_to_wrap(*this, {"embed"}, fsdp2_kwargs()); }
};

TEST(ATieAcrossGroups, IsNamedByBothPaths) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    Tied model;
    EXPECT_EQ(
        test::message_of<ConfigError>(
            [&] { model.fully_shard(world, own_config("sub_modules_to_wrap: [tied_head]\n")); }),
        "f.yaml:1:22: sub_modules_to_wrap: 'embed.weight' (group of the root) and 'tied_head.weight' (group "
        "'tied_head') are one parameter; a tie must stay inside one group: wrap neither module, wrap both as one group, or untie them "
        "(--untie-embeddings-and-output-weights, or tie_word_embeddings: false)");
  });
}

TEST(ATieAcrossGroups, OfAStrategyOfItsOwnIsNamedToo) {
  test::run_world(1, [](RankContext&, comm::World& world) {
    TiedByStrategy model;
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { model.fully_shard(world, own_config("sharding_size: auto\n")); }),
        "OwnModel: 'embed.weight' (group 'embed') and 'tied_head.weight' (group of the root) are one parameter; a "
        "tie must stay inside one group: wrap neither module, wrap both as one group, or untie them (--untie-embeddings-and-output-weights, or "
        "tie_word_embeddings: false)");
  });
}

// --- An operator that does not take the shapes

class WidensTooMuch final : public nn::Module {
 public:
  explicit WidensTooMuch(bool adds) : adds_(adds) {
    weight_ = &register_parameter("weight", {kOwnWidth, 2 * kOwnWidth}, nn::Init::ones());
  }
  std::string_view type_name() const override { return "WidensTooMuch"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor& x = args.tensor(0);
    return adds_ ? ops::add(x, weight_->value) : ops::linear(x, weight_->value);
  }

 private:
  bool adds_;
  nn::ParamSlot* weight_ = nullptr;
};

class HasABlockThatDoesNotFit final : public test::OwnModel {
 public:
  explicit HasABlockThatDoesNotFit(bool adds = false) : OwnModel(1) {
    layers.append(std::make_shared<WidensTooMuch>(adds));
  }
};

// The toy's input is [4, 6].
TEST(AnOperatorWithoutFittingShapes, IsNamedWithTheModuleItsShapesAndWhatFits) {
  static_assert(kOwnWidth == 6);
  test::run_world(1, [](RankContext&, comm::World& world) {
    HasABlockThatDoesNotFit model;
    fully_shard(model, world, own_config(test::kWrapLayers));
    EXPECT_EQ(test::message_of<ModelError>([&] { model(input()); }),
              "[rank 0] in the forward of 'layers.1' (WidensTooMuch): linear: input fp32 [4, 6] with weight fp32 [6, "
              "12]; a weight [outputs, inputs] takes an input of as many inputs, in one dtype");
  });
  test::run_world(1, [](RankContext&, comm::World&) {
    HasABlockThatDoesNotFit model(true);
    init_on_device(model, {});
    EXPECT_EQ(test::message_of<ModelError>([&] { model(input()); }),
              "[rank 0] in the forward of 'layers.1' (WidensTooMuch): add: fp32 [4, 6] with fp32 [6, 12]; aligned at "
              "the last dim, sizes need to be equal or 1, in the same dtype");
  });
}

TEST(AnOperatorWithoutFittingShapes, OutsideOfEveryModuleIsNamedAlone) {
  test::run_world(1, [](RankContext&, comm::World&) {
    HasABlockThatDoesNotFit model;
    init_on_device(model, {});
    EXPECT_THROW(model(input()), ModelError);  // what ran is over
    EXPECT_EQ(test::message_of<ModelError>([&] { input().item(); }),
              "[rank 0] item() of a tensor with 24 elements; to_vector() gives them all");
  });
}

TEST(AValueOfAnotherKind, IsNamedWithTheModuleThatReadsIt) {
  test::run_world(1, [](RankContext&, comm::World&) {
    test::OwnModel model;
    init_on_device(model, {});
    EXPECT_EQ(
        test::message_of<ModelError>([&] { model(nn::Value(7)); }),
        "[rank 0] in the forward of OwnModel: a value is an integer where a tensor is expected; give a tensor, or "
        "read it as its own type");
  });
}

// --- A forward that returns a struct of tensors

struct Output {
  Tensor logits, hidden;
  nn::Value to_value() const { return nn::ValueDict{{"logits", logits}, {"hidden", hidden}}; }
  static Output from(const nn::Value& value) { return {value["logits"], value["hidden"]}; }
};

class ReturnsAStruct final : public test::OwnModel {
 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor hidden = layers[0](embed(args.tensor(0)));
    return Output{head(hidden), hidden};
  }
};

TEST(AStructOfTensors, IsReachedByShardingAndReadBack) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    ReturnsAStruct model;
    fully_shard(model, world, own_config("sharding_size: auto\noutput_dtype: bf16\n"));
    const Output output = Output::from(model(input()));
    EXPECT_EQ(output.logits.dtype(), DType::kBF16);  // the output cast saw both
    EXPECT_EQ(output.hidden.dtype(), DType::kBF16);
    autograd::backward(ops::mean(ops::cast(output.logits, DType::kF32)));
    EXPECT_TRUE(model.head.weight.value.grad().defined());
  });
}

TEST(AStructOfTensors, AKeyThatIsNotThereIsNamedWithThoseThatAre) {
  const nn::Value value = nn::ValueDict{{"logits", Tensor{}}, {"hidden", Tensor{}}};
  EXPECT_EQ(test::message_of<ModelError>([&] { value["logit"]; }), "a dict has no 'logit'; it has logits, hidden");
}

}  // namespace
}  // namespace loom::models
