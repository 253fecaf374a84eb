// Promise: a registered method of a wrapped module is gathered for, resharded after and differentiated as its forward.
// World:   2 ranks as threads; an encoder and decoder of one parameter each under a root with one of its own, width 4.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using test::run_world;
using ::testing::ElementsAre;

// forward(x) = decoder(encode(x)); encode(x) = encoder(x . weight^T).
class AutoEncoder final : public nn::Module {
 public:
  AutoEncoder()
      : weight(register_parameter("weight", {test::kEvenWidth, test::kEvenWidth}, nn::Init::normal(0.5))),
        encoder(register_module("encoder", std::make_shared<test::ToyBlock>(test::kEvenWidth))),
        decoder(register_module("decoder", std::make_shared<test::ToyBlock>(test::kEvenWidth))) {}
  std::string_view type_name() const override { return "AutoEncoder"; }
  nn::Value encode(const nn::Args& args) { return encoder(ops::linear(args.tensor(0), weight.value)); }

  nn::ParamSlot& weight;
  test::ToyBlock& encoder;
  test::ToyBlock& decoder;

 protected:
  nn::Value forward(const nn::Args& args) override { return decoder(encode(args)); }
};

// Wrapped, with "encode" registered.
std::shared_ptr<AutoEncoder> sharded(const FullyShardOptions& options) {
  auto model = std::make_shared<AutoEncoder>();
  fully_shard(model->encoder, options);
  fully_shard(model->decoder, options);
  fully_shard(*model, options);
  materialize_shards(*model);
  nn::init_weights(*model, test::kToySeed);
  register_fsdp_forward_method(*model, "encode", [&m = *model](nn::Args args) { return m.encode(args); });
  return model;
}

// The same numbers by hand: the whole model's encode().
std::shared_ptr<AutoEncoder> whole() {
  auto model = std::make_shared<AutoEncoder>();
  nn::materialize(*model);
  nn::init_weights(*model, test::kToySeed);
  return model;
}

nn::Args args_of(const Tensor& input) {
  nn::Args args;
  args.positional.emplace_back(input);
  return args;
}

FullyShardOptions resharding(comm::World& world) {
  FullyShardOptions options = test::sharded_over_all(world);
  options.reshard_after_forward = true;
  return options;
}

TEST(ForwardMethod, GathersBeforeAndReshardsAfterInForwardAndBackward) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto model = sharded(resharding(world));
    const device::Recorder recorder(device::Device::current());
    autograd::backward(ops::mean(call_method(*model, "encode", test::toy_input(0, 3, test::kEvenWidth))));
    std::vector<std::string> events;
    for (const test::Issued& entry : test::issued(recorder.recording())) {
      if (entry.is_mark()) events.push_back(fmt::format("{}:{}", entry.name, entry.subject));
    }
    EXPECT_THAT(events, ElementsAre("AG:", "W:", "AG:encoder", "W:encoder", "RE:encoder", "RE:",  // forward
                                    "AG:encoder", "W:encoder", "AG:", "W:",                       // backward
                                    "RE:encoder", "RS:encoder", "RE:", "RS:"));
  });
}

TEST(ForwardMethod, GivesTheValuesAndGradientsOfTheWholeModel) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const Tensor input = test::toy_input(0, 3, test::kEvenWidth);
    const auto reference = whole();
    const Tensor expected = reference->encode(args_of(input)).tensor();
    autograd::backward(ops::mean(expected));
    const auto model = sharded(resharding(world));
    const Tensor encoded = call_method(*model, "encode", input);
    EXPECT_EQ(encoded.to_vector<double>(), expected.to_vector<double>());
    autograd::backward(ops::mean(encoded));
    for (auto& [path, gradient] : test::gradients(*model)) {
      for (auto& [other, full] : test::gradients(*reference)) {
        if (other == path) {
          EXPECT_EQ(gradient, test::rows_of(full, 2 * context.rank(), 2, test::kEvenWidth)) << path;
        }
      }
    }
    EXPECT_EQ(test::gradients(*model).size(), 2u);  // not the decoder's
    // And forward is what it was.
    EXPECT_EQ((*model)(input).tensor().to_vector<double>(), (*reference)(input).tensor().to_vector<double>());
  });
}

TEST(ForwardMethod, CastsInputsAndOutputsAsForwardDoes) {
  run_world(2, [](RankContext&, comm::World& world) {
    FullyShardOptions options = resharding(world);
    options.policy.param_dtype = DType::kBF16;
    options.policy.output_dtype = DType::kF64;
    const auto model = sharded(options);
    DType seen = DType::kF32;
    register_fsdp_forward_method(*model, "look", [&](nn::Args args) {
      seen = args.tensor(0).dtype();
      return args.positional[0];
    });
    EXPECT_EQ(call_method(*model, "look", test::toy_input(0, 3, test::kEvenWidth)).tensor().dtype(), DType::kF64);
    EXPECT_EQ(seen, DType::kBF16);
  });
}

TEST(ForwardMethod, TakesNamedArguments) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto model = sharded(resharding(world));
    register_fsdp_forward_method(*model, "pick", [](nn::Args args) { return args.find("picked"); });
    nn::Args args;
    args.named.emplace_back("picked", test::toy_input(1, 3, test::kEvenWidth));
    EXPECT_EQ(call_method(*model, "pick", args).tensor().to_vector<double>(),
              test::toy_input(1, 3, test::kEvenWidth).to_vector<double>());
  });
}

TEST(ForwardMethod, IsNamedWhenItIsMissingTakenOrItsModuleNotWrapped) {
  run_world(2, [](RankContext&, comm::World& world) {
    const Tensor input = test::toy_input(0, 3, test::kEvenWidth);
    const auto model = sharded(resharding(world));
    EXPECT_EQ(message_of<ConfigError>([&] { call_method(*model, "generate", input); }),
              "a AutoEncoder has no forward method 'generate' (it has encode); add it with "
              "register_fsdp_forward_method()");
    EXPECT_EQ(message_of<ConfigError>([&] { call_method(model->encoder, "encode", input); }),
              "a ToyBlock has no forward method 'encode' (it has none); add it with register_fsdp_forward_method()");
    const ForwardMethod method = [](nn::Args args) { return args.positional[0]; };
    EXPECT_EQ(message_of<ConfigError>([&] { register_fsdp_forward_method(*model, "encode", method); }),
              "a AutoEncoder has a forward method 'encode' already; register each name once");
    AutoEncoder bare;
    EXPECT_EQ(message_of<ConfigError>([&] { register_fsdp_forward_method(bare, "encode", method); }),
              "register_fsdp_forward_method('encode') of a AutoEncoder that is not wrapped; call fully_shard() on it "
              "first");
    EXPECT_EQ(
        message_of<ConfigError>([&] { call_method(bare, "encode", input); }),
        "call_method('encode') of a AutoEncoder that is not wrapped; call its own method, or fully_shard() it and "
        "register the name with register_fsdp_forward_method()");
  });
}

}  // namespace
}  // namespace loom::sharding
