// Promise: Muon orthogonalizes the hidden matrices and leaves everything else to AdamW; its weights are bit for bit the
//          same on any number of ranks, in any layout; its state goes out and in; what it cannot update is refused.
// World:   ranks as threads; three linear layers of width 5 (uneven shards), an embedding, a head, norms and biases.
#include "engine/nn/optim/muon.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/nn/layers.h"
#include "engine/nn/optim/moments.h"
#include "engine/tensor/ops.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "sharding/sharded_parameters.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using nn::MuonCoefficients;
using nn::MuonOptions;
using nn::MuonScale;
using test::run_world;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr nn::AdamWOptions kAdamW{.lr = 0.02, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

class TinyLm final : public nn::Module {
 public:
  TinyLm()
      : embed_(register_module("embed_tokens", std::make_shared<nn::Embedding>(7, 5, 0.5))),
        up_(register_module("up", std::make_shared<nn::Linear>(5, 11, true, 0.5))),
        down_(register_module("down", std::make_shared<nn::Linear>(11, 5, false, 0.5))),
        norm_(register_module("norm", std::make_shared<nn::RMSNorm>(5, 1e-6))),
        lm_head_(register_module("lm_head", std::make_shared<nn::Linear>(5, 7, false, 0.5))) {}
  std::string_view type_name() const override { return "TinyLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor hidden = embed_(args.tensor(0)).tensor();
    return lm_head_(norm_(down_(up_(hidden))));
  }

 private:
  nn::Child<nn::Embedding> embed_;
  nn::Child<nn::Linear> up_, down_;
  nn::Child<nn::RMSNorm> norm_;
  nn::Child<nn::Linear> lm_head_;
};

std::vector<std::string> paths(const nn::ParameterGroup& group) {
  std::vector<std::string> found;
  for (const nn::OptimizedParameter& parameter : group.parameters) found.push_back(parameter.path);
  return found;
}

std::unique_ptr<TinyLm> made(comm::World& world, GatherLayout layout, bool offload = false) {
  auto model = std::make_unique<TinyLm>();
  FullyShardOptions options;
  options.axes = FsdpAxes::over(world, world.size());
  options.layout = layout;
  if (offload) options.cpu_offload = CpuOffloadPolicy{};
  fully_shard(*model->find("up"), options);
  fully_shard(*model, options);
  materialize_shards(*model);
  nn::init_weights(*model, 5);
  return model;
}

nn::ParameterGroups groups_of(nn::Module& model) {
  return nn::make_parameter_groups(model, {.no_decay_on_norms_and_biases = true, .hidden_matrices_apart = true});
}

// All ranks see the same rows, so that their mean gradient is that of one.
void train_step(TinyLm& model, nn::Optimizer& optimizer, int step) {
  const Tensor ids = Tensor::host({4}, DType::kI64, "ids"), targets = Tensor::host({4}, DType::kI64, "targets");
  for (int i = 0; i < 4; ++i) {
    ids.data<std::int64_t>()[i] = (2 * i + step) % 7;
    targets.data<std::int64_t>()[i] = (3 * i + step) % 7;
  }
  autograd::backward(ops::cross_entropy(model(ids).tensor(), targets));
  optimizer.step();
  optimizer.zero_grad();
}

using Weights = std::map<std::string, std::vector<float>>;

Weights weights_of(nn::Module& model) {
  Weights found;
  for_each_full_parameter(model,
                          [&](const std::string& path, const Tensor& full) { found[path] = full.to_vector<float>(); });
  return found;
}

Weights trained(int ranks, GatherLayout layout, const MuonOptions& options, int steps = 3) {
  Weights result;
  run_world(ranks, [&](RankContext& context, comm::World& world) {
    const auto model = made(world, layout);
    nn::Muon muon(groups_of(*model), sharded_parameters(*model), options, kAdamW);
    for (int step = 0; step < steps; ++step) train_step(*model, muon, step);
    Weights own = weights_of(*model);
    if (context.rank() == 0) result = std::move(own);
  });
  return result;
}

TEST(MuonGroups, EmbeddingOutputLayerNormsAndBiasesAreNoHiddenMatrices) {
  run_world(1, [](RankContext&, comm::World& world) {
    const auto model = made(world, GatherLayout::kFast);
    const nn::ParameterGroups groups = groups_of(*model);
    ASSERT_EQ(groups.size(), 3u);
    EXPECT_TRUE(groups[0].hidden_matrices);
    EXPECT_THAT(paths(groups[0]), ElementsAre("up.weight", "down.weight"));
    EXPECT_THAT(paths(groups[1]), ElementsAre("embed_tokens.weight", "lm_head.weight"));
    EXPECT_THAT(paths(groups[2]), ElementsAre("up.bias", "norm.weight"));
  });
}

// The mean of two or four equal gradients is exact, that of three is rounded.
TEST(Muon, HasTheSameBitsOnAnyNumberOfRanksInAnyLayout) {
  const Weights alone = trained(1, GatherLayout::kFast, {});
  for (const int ranks : {2, 3, 4}) {
    const Weights fast = trained(ranks, GatherLayout::kFast, {});
    EXPECT_TRUE(trained(ranks, GatherLayout::kBuffered, {}) == fast) << ranks;
    if (ranks != 3) {
      EXPECT_TRUE(fast == alone) << ranks;
    }
    for (const auto& [path, values] : alone) {
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(fast.at(path)[i], values[i], 1e-3) << path;
    }
  }
}

// Two hidden matrices: one for each of the first two ranks.
TEST(Muon, EachMatrixIsOrthogonalizedByOneRank) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<int> products(static_cast<std::size_t>(ranks));
    run_world(ranks, [&](RankContext& context, comm::World& world) {
      const auto model = made(world, GatherLayout::kFast);
      nn::Muon muon(groups_of(*model), sharded_parameters(*model), {}, kAdamW);
      for (const Tensor& parameter : model->parameters()) parameter.set_grad(nn::moment_like(parameter));
      const device::Recorder recorder(device::Device::current());
      muon.step();
      for (const device::Entry& entry : recorder.recording().entries) {
        products[static_cast<std::size_t>(context.rank())] += entry.cost.unit == device::Unit::kMatrix;
      }
    });
    constexpr int kOfOne = 5 * 3;  // X X', S S and the update, five times
    if (ranks == 1) {
      EXPECT_THAT(products, ElementsAre(2 * kOfOne));
    }
    if (ranks == 2) {
      EXPECT_THAT(products, ElementsAre(kOfOne, kOfOne));
    }
    if (ranks == 3) {
      EXPECT_THAT(products, ElementsAre(kOfOne, kOfOne, 0));
    }
  }
}

// The step written out in double: momentum, the iteration in bf16 by the operator, decay by the rate without scale.
TEST(Muon, AppliesTheOrthogonalizedMomentumWithDecoupledDecay) {
  run_world(1, [](RankContext&, comm::World& world) {
    const auto model = made(world, GatherLayout::kFast);
    nn::Muon muon(groups_of(*model), sharded_parameters(*model), {.extra_scale = 0.5}, kAdamW);
    const Weights before = weights_of(*model);
    const Tensor& up = muon.groups()[0].parameters[0].value;
    const Tensor ids = Tensor::host({4}, DType::kI64, "ids");
    for (int i = 0; i < 4; ++i) ids.data<std::int64_t>()[i] = i;
    autograd::backward(ops::cross_entropy((*model)(ids).tensor(), ids));
    const Tensor grad = up.grad();
    std::vector<float> update = grad.to_vector<float>();
    for (float& value : update) value *= 0.05F + 0.95F * 0.05F;  // the buffer began at zero; Nesterov's form
    const Tensor u = ops::cast(Tensor::from(update, {11, 5}), DType::kBF16);
    const std::vector<float> o = ops::orthogonalized(u, ops::newton_schulz(5)).to_vector<float>();
    muon.step();
    const std::vector<float> after = weights_of(*model).at("up.weight");
    const double step = 0.02 * 0.5 * std::sqrt(11.0);
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_NEAR(after[i], before.at("up.weight")[i] * (1 - 0.02 * 0.1) - step * o[i], 2e-3 * step) << i;
    }
    EXPECT_EQ(after.size(), 55u);
  });
}

TEST(Muon, GoesOnBitForBitFromItsState) {
  for (const int ranks : {1, 2}) {
    run_world(ranks, [](RankContext&, comm::World& world) {
      const auto model = made(world, GatherLayout::kFast);
      nn::Muon muon(groups_of(*model), sharded_parameters(*model), {}, kAdamW);
      for (int step = 0; step < 2; ++step) train_step(*model, muon, step);
      const nn::OptimizerState state = nn::host_copies(muon.state_dict());
      EXPECT_TRUE(state.parameters.at("up.weight").contains("momentum_buffer"));
      EXPECT_TRUE(state.parameters.at("lm_head.weight").contains("exp_avg_sq"));
      EXPECT_EQ(state.groups[0].options.at("ns_steps"), 5);
      EXPECT_EQ(state.groups[1].options.at("beta2"), 0.95);

      const auto other = made(world, GatherLayout::kFast);
      nn::StateDict weights = local_state_dict(*model);
      load_local_state_dict(*other, weights);
      nn::Muon fresh(groups_of(*other), sharded_parameters(*other), {.momentum = 0.5, .steps = 3}, {});
      fresh.load_state_dict(state);
      train_step(*model, muon, 2);
      train_step(*other, fresh, 2);
      EXPECT_EQ(weights_of(*other), weights_of(*model));
    });
  }
}

// AdamW's first step moves each element by its rate, but for the decay of the embedding and the output layer.
TEST(Muon, GivesTheRestItsOwnRateOnTheSameSchedule) {
  run_world(1, [](RankContext&, comm::World& world) {
    for (const double share : {1.0, 0.5}) {  // of the largest rate
      const auto model = made(world, GatherLayout::kFast);
      nn::Muon muon(groups_of(*model), sharded_parameters(*model), {.scalar_lr = 0.002}, kAdamW);
      EXPECT_EQ(muon.groups()[0].lr, 0.02);
      EXPECT_DOUBLE_EQ(*muon.groups()[2].lr, 0.002);
      muon.set_lr(0.02 * share);
      const Weights before = weights_of(*model);
      train_step(*model, muon, 0);
      const Weights after = weights_of(*model);
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_NEAR(std::abs(after.at("norm.weight")[i] - before.at("norm.weight")[i]), 0.002 * share, 1e-6);
      }
    }
  });
}

TEST(Muon, RefusesShardsInHostMemory) {
  run_world(1, [](RankContext&, comm::World& world) {
    const auto model = made(world, GatherLayout::kFast, true);
    EXPECT_THAT(
        test::message_of<ConfigError>([&] { nn::Muon(groups_of(*model), sharded_parameters(*model), {}, kAdamW); }),
        HasSubstr("Muon: parameter 'up.weight': its shard is in host memory (offload_to_cpu); Muon updates on "
                  "the device: set offload_to_cpu: false, or use --optimizer adam"));
  });
}

TEST(MuonScale, FollowsTheShape) {
  EXPECT_DOUBLE_EQ(scale_of(MuonScale::kSpectral, 16, 4), 4);
  EXPECT_DOUBLE_EQ(scale_of(MuonScale::kUnitRmsNorm, 16, 4), 2);
  EXPECT_DOUBLE_EQ(scale_of(MuonScale::kUnitRmsNorm, 4, 16), 0.5);
  EXPECT_DOUBLE_EQ(scale_of(MuonScale::kShapeScaling, 16, 4), 2);
  EXPECT_DOUBLE_EQ(scale_of(MuonScale::kShapeScaling, 4, 16), 1);
}

TEST(MuonCoefficients, CycleOrRepeatTheirLast) {
  const auto quintic = iteration_of(MuonCoefficients::kQuintic, 7).coefficients;
  EXPECT_EQ(quintic[5], quintic[0]);
  EXPECT_EQ(quintic[6], quintic[1]);
  EXPECT_DOUBLE_EQ(quintic[1][0], 3.9505);
  const auto polar = iteration_of(MuonCoefficients::kPolarExpress, 10).coefficients;
  EXPECT_EQ(polar[9], polar[7]);
  EXPECT_DOUBLE_EQ(polar[7][1], -1.25);
  EXPECT_DOUBLE_EQ(iteration_of(MuonCoefficients::kSimple, 1).coefficients[0][2], 2.0315);
}

}  // namespace
}  // namespace loom::sharding
