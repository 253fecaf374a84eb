// Promise: sharded modules inside a recomputed one keep all their gradients: one that runs twice, and several in one
//          recomputed region.
// World:   2 ranks as threads; modules of 4 elements, two steps without an optimizer (gradients add up).
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "sharding/fully_shard.h"
#include "tests/recompute/toys.h"
#include "tests/support/issued.h"

namespace loom {
namespace {

using test::Floats;
using test::Kind;

constexpr std::int64_t kDim = 4;

// `calls` times the child "block", one after another, then a product with the parent's own weight.
class Repeated final : public nn::Module {
 public:
  Repeated(const std::shared_ptr<nn::Module>& block, int calls)
      : weight_(register_parameter("weight", {kDim}, nn::Init::normal(1))),
        block_(register_module("block", block)),
        calls_(calls) {}
  std::string_view type_name() const override { return "Repeated"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor x = args.tensor(0);
    for (int i = 0; i < calls_; ++i) x = block_(x).tensor();
    return ops::mul(x, weight_.value);
  }

 private:
  nn::ParamSlot& weight_;
  nn::Module& block_;
  const int calls_;
};

struct Trained {
  std::vector<Floats> gradients;
  std::vector<std::string> gathers;
};

using Build = std::function<std::shared_ptr<nn::Module>()>;
using Apply = std::function<void(nn::Module&, const sharding::FullyShardOptions&)>;

// Rank 0's gradients after two steps, and the gathers of the second.
Trained train(const Build& build, const Apply& apply) {
  Trained of_first;
  launch::run_ranks(2, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World& world) {
    device::Device& device = device::Device::install(context, {});
    const auto model = build();
    sharding::FullyShardOptions options;
    options.axes = sharding::FsdpAxes::over(world, 2);
    options.reshard_after_forward = true;
    apply(*model, options);
    sharding::materialize_shards(*model);
    nn::init_weights(*model, /*seed=*/3);
    device::Recorder recorder(device);
    for (int step = 0; step < 2; ++step) {
      recorder.clear();
      autograd::backward(ops::mean((*model)(test::input(kDim))));
    }
    device.synchronize();
    if (context.rank() != 0) return;
    for (const auto& [path, parameter] : model->named_parameters())
      of_first.gradients.push_back(test::floats(parameter.grad()));
    for (const test::Issued& entry : test::issued(recorder.recording())) {
      if (entry.name == "AG") of_first.gathers.push_back(entry.subject);
    }
  });
  return of_first;
}

class ShardedInside : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, ShardedInside, ::testing::Values(Kind::kReentrant, Kind::kRecorded),
                         [](const auto& info) { return test::to_string(info.param); });

TEST_P(ShardedInside, ABlockThatRunsTwice) {
  const Build build = [] { return std::make_shared<Repeated>(test::twist(kDim), 2); };
  const auto apply = [](std::optional<Kind> kind, bool recompute_first) -> Apply {
    return [=](nn::Module& model, const sharding::FullyShardOptions& options) {
      nn::Module& block = *model.find("block");
      if (kind && recompute_first) test::checkpoint(block, *kind);
      sharding::fully_shard(block, options);
      if (kind && !recompute_first) test::checkpoint(block, *kind);
      sharding::fully_shard(model, options);
    };
  };
  const Trained plain = train(build, apply(std::nullopt, true));
  for (const bool recompute_first : {true, false}) {
    const Trained recomputed = train(build, apply(GetParam(), recompute_first));
    EXPECT_EQ(recomputed.gradients, plain.gradients) << recompute_first;
    EXPECT_EQ(recomputed.gathers, plain.gathers) << recompute_first;
  }
}

TEST_P(ShardedInside, SeveralInOneRecomputedModule) {
  const Build build = [] {
    const auto pair =
        std::make_shared<test::Chain>(std::vector<std::shared_ptr<nn::Module>>{test::twist(kDim), test::twist(kDim)});
    return std::make_shared<test::Chain>(
        std::vector<std::shared_ptr<nn::Module>>{test::twist(kDim), std::make_shared<Repeated>(pair, 1)});
  };
  const auto apply = [](std::optional<Kind> kind) -> Apply {
    return [=](nn::Module& model, const sharding::FullyShardOptions& options) {
      sharding::fully_shard(*model.find("1.block.0"), options);
      sharding::fully_shard(*model.find("1.block.1"), options);
      if (kind) test::checkpoint(*model.find("1"), *kind, "1");
      sharding::fully_shard(model, options);
    };
  };
  const Trained plain = train(build, apply(std::nullopt));
  const Trained recomputed = train(build, apply(GetParam()));
  EXPECT_EQ(recomputed.gradients, plain.gradients);
  EXPECT_THAT(recomputed.gathers,
              ::testing::UnorderedElementsAreArray(plain.gathers));  // forward runs again in forward's order
}

}  // namespace
}  // namespace loom
