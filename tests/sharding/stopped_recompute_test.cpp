// Promise: modules wrapped together inside a recomputed region that is not run to its end again are not reported as
//          modules that did not run, and run again as they ran first; one that really did not run is reported.
// World:   2 ranks as threads; a region of 2 blocks of width 4, run once or twice, in a root.
#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sstream>

#include "engine/core/log.h"
#include "recompute/checkpoint.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;
using ::testing::HasSubstr;

class Region final : public nn::Module {
 public:
  Region()
      : first(register_module("first", std::make_shared<test::ToyBlock>(test::kEvenWidth))),
        second(register_module("second", std::make_shared<test::ToyBlock>(test::kEvenWidth))) {}
  std::string_view type_name() const override { return "Region"; }
  test::ToyBlock& first;
  test::ToyBlock& second;
  bool skips_second = false;

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor h = first(args.tensor(0));
    return skips_second ? nn::Value(h) : second(h);
  }
};

class Root final : public nn::Module {
 public:
  explicit Root(int calls)
      : weight(register_parameter("weight", {test::kEvenWidth, test::kEvenWidth}, nn::Init::normal(0.5))),
        region(register_module("region", std::make_shared<Region>())),
        calls_(calls) {}
  std::string_view type_name() const override { return "Root"; }
  nn::ParamSlot& weight;
  Region& region;

 protected:
  nn::Value forward(const nn::Args& args) override {
    Tensor h = ops::linear(args.tensor(0), weight.value);
    for (int i = 0; i < calls_; ++i) h = ops::cast(region(ops::cast(h, DType::kF32)), DType::kF32);
    return h;
  }

 private:
  const int calls_;
};

class LoggedWarnings {
 public:
  LoggedWarnings() : sink_(std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)) {
    sink_->set_pattern("%l: %v");
    logger().sinks().push_back(sink_);
  }
  ~LoggedWarnings() { logger().sinks().pop_back(); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_;
};

using Gradients = std::vector<std::pair<std::string, std::vector<double>>>;

Gradients train(RankContext& context, comm::World& world, int calls, bool recomputed, bool skips_second = false) {
  Root root(calls);
  root.region.skips_second = skips_second;
  FullyShardOptions options = test::sharded_over_all(world);
  options.policy.param_dtype = DType::kBF16;  // the region gets fp32: running again must cast it again
  options.policy.reduce_dtype = DType::kF32;
  options.reshard_after_forward = true;
  if (recomputed) recompute::checkpoint(root.region, {.path = "region", .use_reentrant = false});
  fully_shard(std::vector<nn::Module*>{&root.region.first, &root.region.second}, options);
  fully_shard(root, options);
  materialize_shards(root);
  nn::init_weights(root, test::kToySeed);
  for (int step = 0; step < 2; ++step) {
    test::forward_backward(root, test::toy_input(2 * step + context.rank(), 3, test::kEvenWidth));
  }
  return test::gradients(root);
}

class StoppedRecompute : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Calls, StoppedRecompute, ::testing::Values(1, 2));

TEST_P(StoppedRecompute, OfModulesTogetherWarnsOfNothingAndGivesTheSameGradients) {
  const LoggedWarnings warnings;
  run_world(2, [](RankContext& context, comm::World& world) {
    EXPECT_EQ(train(context, world, GetParam(), true), train(context, world, GetParam(), false));
  });
  EXPECT_EQ(warnings.text(), "");
}

TEST(StoppedRecompute, DoesNotHideAModuleThatDidNotRunInForward) {
  const LoggedWarnings warnings;
  run_world(1, [](RankContext& context, comm::World& world) {
    train(context, world, 1, /*recomputed=*/true, /*skips_second=*/true);
  });
  EXPECT_THAT(warnings.text(), HasSubstr("[rank 0] 1 of the modules wrapped together as 'region.first' did not run in "
                                         "forward (a ToyBlock first); their group was not resharded by it"));
}

}  // namespace
}  // namespace loom::sharding
