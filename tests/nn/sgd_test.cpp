// Promise: SGD is torch.optim.SGD's formula with momentum, dampening, Nesterov's form and weight decay; state only with
//          momentum.
#include "engine/nn/optim/sgd.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/tensor/tensors.h"

namespace loom::nn {
namespace {

using Doubles = std::vector<double>;

ParameterGroups group_of(const Tensor& parameter) {
  return {{.parameters = {{"w", parameter, ShardSpec::whole(parameter.shape())}}}};
}

Tensor parameter(const Doubles& values) {
  Tensor tensor = Tensor::from(std::span<const double>(values), {static_cast<std::int64_t>(values.size())});
  tensor.set_requires_grad(true);
  return tensor;
}

// d = g + wd w; b = first ? d : mu b + (1 - dampening) d; w -= lr (nesterov ? d + mu b : b)
TEST(Sgd, FollowsItsFormula) {
  test::OneRank rank;
  for (const SgdOptions& options : {SgdOptions{.lr = 0.1}, SgdOptions{.lr = 0.1, .weight_decay = 0.3},
                                    SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.3},
                                    SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.4, .weight_decay = 0.3},
                                    SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 1},
                                    SgdOptions{.lr = 0.1, .momentum = 0.8, .nesterov = true}}) {
    const Tensor w = parameter({1, -2, 3});
    Sgd optimizer(group_of(w), options);
    Doubles expected{1, -2, 3}, buffer(3);
    for (int step = 0; step < 4; ++step) {
      const Doubles g{0.5 + step, -1, 2.0 - step};
      w.set_grad(test::constant(g));
      optimizer.step();
      for (std::size_t i = 0; i < 3; ++i) {
        const double d = g[i] + options.weight_decay * expected[i];
        buffer[i] = step == 0 ? d : options.momentum * buffer[i] + (1 - options.dampening) * d;
        expected[i] -= options.lr * (options.nesterov ? d + options.momentum * buffer[i] : buffer[i]);
      }
      const Doubles actual = w.to_vector<double>();
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-14) << options.momentum << step;
    }
    const OptimizerState state = optimizer.state_dict();
    EXPECT_EQ(state.parameters.contains("w"), options.momentum != 0);
    if (options.momentum != 0) {
      EXPECT_TRUE(state.parameters.at("w").contains("momentum_buffer"));
    }
  }
}

TEST(Sgd, RefusesNesterovWithoutMomentum) {
  test::OneRank rank;
  EXPECT_EQ(test::message_of<ConfigError>([] { Sgd(group_of(parameter({1})), {.nesterov = true}); }),
            "SGD: Nesterov's form needs a momentum above 0");
}

TEST(Sgd, RefusesNesterovWithDampening) {
  test::OneRank rank;
  const SgdOptions options{.momentum = 0.9, .dampening = 0.25, .nesterov = true};
  EXPECT_EQ(test::message_of<ConfigError>([&] { Sgd(group_of(parameter({1})), options); }),
            "SGD: Nesterov's form needs dampening 0, and it is 0.25");
}

TEST(Sgd, SetsTheRateOfAGroupTimesItsMultiplier) {
  test::OneRank rank;
  ParameterGroups groups = group_of(parameter({1}));
  groups.push_back(group_of(parameter({2})).front());
  groups[1].parameters.front().path = "v";
  groups[1].lr_mult = 0.5;
  Sgd optimizer(groups, {.lr = 0.1});
  optimizer.set_lr(0.4);
  EXPECT_EQ(optimizer.groups()[0].lr, 0.4);
  EXPECT_EQ(optimizer.groups()[1].lr, 0.2);
  const OptimizerState state = optimizer.state_dict();
  EXPECT_FALSE(state.groups[0].options.contains("lr_mult"));
  EXPECT_EQ(state.groups[1].options.at("lr_mult"), 0.5);
  optimizer.groups()[1].lr_mult = 1;
  optimizer.load_state_dict(state);
  EXPECT_EQ(optimizer.groups()[1].lr_mult, 0.5);
}

}  // namespace
}  // namespace loom::nn
