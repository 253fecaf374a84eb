// Promise: --no-decay-modules, --no-decay-params and --lr-scaling-plan choose the weight decay and the learning rate of
//          single parameters, make as many groups as that takes, and say what matches nothing.
// World:   no rank for the rules; 2 ranks as threads for trainers.
#include "engine/train/parameter_rules.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string refusal(const std::string& item) {
  return test::message_of<ConfigError>([&] { parse_lr_scale(item); });
}

TEST(LrScalingPlan, HasARegexAndAFactorInEachItem) {
  const LrScale scale = parse_lr_scale("model\\.embed=0.25");
  EXPECT_EQ(scale.pattern, "model\\.embed");
  EXPECT_EQ(scale.factor, 0.25);
  EXPECT_EQ(parse_lr_scale("head=0").factor, 0);
  for (const std::string bad : {"head", "=2", "head=", "head=-1", "head=2x", "head=nan", "head=inf"}) {
    EXPECT_EQ(refusal(bad), "--lr-scaling-plan has " + bad +
                                "; write REGEX=FACTOR with a factor of at least 0, as in 'model\\.embed_tokens=0.1'");
  }
  EXPECT_THAT(refusal("head(=1"), ::testing::StartsWith("--lr-scaling-plan is 'head('"));
}

TEST(ParameterRules, AreNoneWithoutTheFlags) {
  TinyLm model;
  EXPECT_FALSE(parameter_rules({}, model).rule_of);
}

TEST(ParameterRules, GoByClassPathAndRegex) {
  TinyLm model;
  OptimizerOptions options;
  options.no_decay_modules = {"RMSNorm"};
  options.no_decay_params = {"BIAS"};
  options.lr_scaling_plan = {"head\\.w=2", "head=3", "bed=7"};
  const ParameterRules rules = parameter_rules(options, model);
  using Rule = nn::ParameterRule;
  EXPECT_EQ(rules.rule_of("embed.weight"), (Rule{true, 1}));  // a match begins where the path does
  EXPECT_EQ(rules.rule_of("norm.weight"), (Rule{false, 1}));
  EXPECT_EQ(rules.rule_of("head.weight"), (Rule{true, 2}));  // the first that matches
  EXPECT_EQ(rules.rule_of("head.bias"), (Rule{false, 3}));
  EXPECT_THAT(rules.said, ElementsAre("--lr-scaling-plan: no trained parameter's path begins with a match of bed=7"));
}

TEST(ParameterRules, SayWhatMatchesNothing) {
  TinyLm model;
  OptimizerOptions options;
  options.no_decay_modules = {"RMSnorm", "Conv3d"};
  options.no_decay_params = {"layernorm"};
  EXPECT_THAT(parameter_rules(options, model).said,
              ElementsAre("--no-decay-modules: the model has no module of class RMSnorm; the nearest one is RMSNorm",
                          "--no-decay-modules: the model has no module of class Conv3d; its classes are Dropout, "
                          "Embedding, Linear, RMSNorm",
                          "--no-decay-params: no trained parameter has layernorm in its path"));
}

using RulesOfARun = TinyTrainers;

std::vector<std::string> texts_of(const nn::Optimizer& optimizer) {
  std::vector<std::string> texts;
  for (const nn::ParameterGroup& group : optimizer.groups()) {
    std::string paths;
    for (const nn::OptimizedParameter& parameter : group.parameters) paths += parameter.path + " ";
    texts.push_back(fmt::format("{}lr {} decay {}", paths, group.lr.value(), group.weight_decay.value()));
  }
  return texts;
}

TEST_F(RulesOfARun, MakeTheGroupsOfTheOptimizerWhicheverItIs) {
  arguments.optimizer.no_decay_params = {"norm", "bias"};
  arguments.optimizer.lr_scaling_plan = {"head=0.5"};
  arguments.schedule.weight_decay = 0.25;
  for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kAdamSwap}) {
    arguments.optimizer.kind = kind;
    on_each_rank([&](int, Trainer& trainer) {
      EXPECT_THAT(texts_of(trainer.optimizer()),
                  ElementsAre("embed.weight lr 0.1 decay 0.25", "head.weight lr 0.05 decay 0.25",
                              "norm.weight lr 0.1 decay 0", "head.bias lr 0.05 decay 0"));
      trainer.step();
      EXPECT_THAT(trainer.said(), IsEmpty());
    });
  }
}

TEST_F(RulesOfARun, LeaveAloneWhatHasAFactorOfZero) {
  arguments.optimizer.lr_scaling_plan = {"embed=0"};
  on_each_rank([&](int, Trainer& trainer) {
    const auto values = [&](const std::string& path) {
      return trainer.model().find(path)->parameters().front().to_vector<float>();
    };
    const auto embed = values("embed"), head = values("head");
    trainer.step();
    EXPECT_EQ(values("embed"), embed);
    EXPECT_NE(values("head"), head);
  });
}

TEST_F(RulesOfARun, AreSavedAndLoadedGroupByGroup) {
  arguments.optimizer.no_decay_params = {"norm", "bias"};
  arguments.optimizer.lr_scaling_plan = {"head=0.5"};
  on_each_rank([&](int, Trainer& trainer) {
    trainer.step();
    const nn::OptimizerState state = trainer.optimizer().state_dict();
    ASSERT_EQ(state.groups.size(), 4u);
    EXPECT_THAT(state.groups[3].paths, ElementsAre("head.bias"));
    EXPECT_EQ(state.groups[3].options.at("weight_decay"), 0);
    EXPECT_EQ(state.groups[1].options.at("lr"), 0.5 * state.groups[0].options.at("lr"));
    EXPECT_NO_THROW(trainer.optimizer().load_state_dict(state));
  });
}

TEST_F(RulesOfARun, AreSaidWhereTheyMatchNothing) {
  arguments.optimizer.no_decay_modules = {"RMSnorm"};
  on_each_rank([&](int, Trainer& trainer) {
    EXPECT_THAT(
        trainer.said(),
        ElementsAre("--no-decay-modules: the model has no module of class RMSnorm; the nearest one is RMSNorm"));
  });
}

}  // namespace
}  // namespace loom::train
