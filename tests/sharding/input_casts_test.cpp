// Promise: a wrapped module computes in param_dtype: its floating inputs are cast wherever they are nested, once, and
//          only there.
// World:   1 or 2 ranks as threads; modules that keep what they were called with.
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;
using ::testing::ElementsAre;

// Returns its input; remembers the dtypes of all tensors it was given.
class Recorder final : public nn::Module {
 public:
  explicit Recorder(bool with_parameter) {
    if (with_parameter) weight = &register_parameter("weight", {4, 4}, nn::Init::normal(0.5));
  }
  std::string_view type_name() const override { return "Recorder"; }
  nn::ParamSlot* weight = nullptr;
  std::vector<DType> seen;
  DType weight_dtype = DType::kBool;

 protected:
  nn::Value forward(const nn::Args& args) override {
    seen.clear();
    for (const Tensor& tensor : args.tensors()) seen.push_back(tensor.dtype());
    if (weight == nullptr) return args.positional[0];
    weight_dtype = weight->value.dtype();
    return ops::linear(args.tensor(0), weight->value);
  }
};

// A root without parameters of its own around two recorders.
class TwoModules final : public nn::Module {
 public:
  TwoModules()
      : wrapped(register_module("wrapped", std::make_shared<Recorder>(true))),
        plain(register_module("plain", std::make_shared<Recorder>(false))) {}
  std::string_view type_name() const override { return "TwoModules"; }
  Recorder& wrapped;
  Recorder& plain;
  DType seen = DType::kBool;

 protected:
  nn::Value forward(const nn::Args& args) override {
    seen = args.tensor(0).dtype();
    plain(ops::cast(args.tensor(0), DType::kF32));
    return wrapped(args.tensor(0));
  }
};

FullyShardOptions in_bf16(comm::World& world) {
  FullyShardOptions options = test::sharded_over_all(world);
  options.policy.param_dtype = DType::kBF16;
  return options;
}

std::shared_ptr<Recorder> recorder(const FullyShardOptions& options) {
  auto model = std::make_shared<Recorder>(true);
  fully_shard(*model, options);
  materialize_shards(*model);
  nn::init_weights(*model, 1);
  return model;
}

Tensor ints() { return Tensor::from(std::vector<std::int32_t>{1, 2, 3}, {3}); }

TEST(InputCasts, ReachFloatsNestedInListsAndDictsAndLeaveIntegersAlone) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto model = recorder(in_bf16(world));
    nn::Args args;
    args.positional.emplace_back(test::toy_input(0, 2, 4));
    args.positional.emplace_back(nn::ValueList{nn::Value(ints()), nn::Value(test::toy_input(1, 2, 4, DType::kF64))});
    args.named.emplace_back(
        "mask", nn::Value(nn::ValueDict{{"bias", nn::Value(nn::ValueList{nn::Value(test::toy_input(2, 1, 4))})},
                                        {"ids", nn::Value(ints())},
                                        {"scale", nn::Value(0.5)}}));
    model->call(std::move(args));
    EXPECT_THAT(model->seen, ElementsAre(DType::kBF16, DType::kI32, DType::kBF16, DType::kBF16, DType::kI32));
  });
}

TEST(InputCasts, AreOffWithCastForwardInputsFalse) {
  run_world(2, [](RankContext&, comm::World& world) {
    FullyShardOptions options = in_bf16(world);
    options.policy.cast_forward_inputs = false;
    const auto model = recorder(options);
    (*model)(ops::cast(test::toy_input(0, 2, 4), DType::kBF16), test::toy_input(1, 2, 4));
    EXPECT_THAT(model->seen, ElementsAre(DType::kBF16, DType::kF32));
  });
}

TEST(InputCasts, HappenInAWrappedModuleWithoutParametersWhichMayBeTheRoot) {
  run_world(2, [](RankContext&, comm::World& world) {
    TwoModules model;
    const FullyShardOptions options = in_bf16(world);
    fully_shard(model.wrapped, options);
    fully_shard(model, options);
    EXPECT_EQ(FsdpState::of(model)->group(), nullptr);
    materialize_shards(model);
    nn::init_weights(model, 1);
    test::forward_backward(model, test::toy_input(0, 2, 4));
    EXPECT_TRUE(FsdpState::of(model)->is_root());
    EXPECT_EQ(model.seen, DType::kBF16);
    EXPECT_TRUE(model.wrapped.weight->value.grad().defined());
  });
}

TEST(InputCasts, DoNotHappenInModulesThatAreNotWrapped) {
  run_world(2, [](RankContext&, comm::World& world) {
    TwoModules model;
    const FullyShardOptions options = in_bf16(world);
    fully_shard(model.wrapped, options);
    fully_shard(model, options);
    materialize_shards(model);
    nn::init_weights(model, 1);
    model(test::toy_input(0, 2, 4));
    EXPECT_THAT(model.plain.seen, ElementsAre(DType::kF32));
    EXPECT_THAT(model.wrapped.seen, ElementsAre(DType::kBF16));
  });
}

TEST(InputCasts, OutputsAreCastLastWhereOutputDtypeAsksForIt) {
  run_world(2, [](RankContext&, comm::World& world) {
    FullyShardOptions options = in_bf16(world);
    options.policy.output_dtype = DType::kF32;
    const auto model = recorder(options);
    EXPECT_EQ((*model)(test::toy_input(0, 2, 4)).tensor().dtype(), DType::kF32);
    EXPECT_EQ(model->weight_dtype, DType::kBF16);
  });
}

TEST(ParamDtype, EqualToTheOriginalCastsNothing) {
  run_world(2, [](RankContext&, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.policy.param_dtype = DType::kF32;
    const auto model = recorder(options);
    const Tensor input = test::toy_input(0, 2, 4);
    nn::Args args;
    args.positional.emplace_back(input);
    model->call(std::move(args));
    EXPECT_THAT(model->seen, ElementsAre(DType::kF32));
    EXPECT_EQ(model->weight_dtype, DType::kF32);
    const Param& param = *FsdpState::of(*model)->group()->params().front();
    EXPECT_EQ(param.compute_dtype(), DType::kF32);
    EXPECT_EQ(param.gather_input_bytes(), 2 * 4 * 4);  // 2 of 4 rows, 4 floats a row
  });
}

TEST(ParamDtype, IsThatOfTheComputationOnOneRankToo) {
  run_world(1, [](RankContext&, comm::World& world) {
    const auto model = recorder(in_bf16(world));
    const Tensor output = (*model)(test::toy_input(0, 2, 4));
    EXPECT_EQ(model->weight_dtype, DType::kBF16);
    EXPECT_EQ(output.dtype(), DType::kBF16);
    autograd::backward(ops::mean(output));
    EXPECT_EQ(model->weight->value.dtype(), DType::kF32) << "the stored shard keeps the model's dtype";
    EXPECT_EQ(model->weight->value.grad().dtype(), DType::kF32);
  });
}

TEST(ParamDtype, TheGatherMovesItsBytesAndTheOptimizerSeesTheOriginal) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto model = recorder(in_bf16(world));
    const device::Recorder recorded(device::Device::current());
    (*model)(test::toy_input(0, 2, 4));
    const std::vector<test::Issued> issued = test::issued(recorded.recording());
    ASSERT_FALSE(issued.empty());
    for (const test::Issued& entry : issued) {
      if (!entry.is_mark() || entry.name != "AG") continue;
      EXPECT_EQ(entry.dtype, DType::kBF16);
      EXPECT_EQ(entry.bytes, 2 * 4 * 2);  // 2 of 4 rows, 4 bf16 a row
    }
    reshard(*model);
    EXPECT_EQ(model->parameters().front().dtype(), DType::kF32);
  });
}

}  // namespace
}  // namespace loom::sharding
