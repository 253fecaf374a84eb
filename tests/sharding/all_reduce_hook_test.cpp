// Promise: an all-reduce hook gets every reduced row of its module's gradients, after the last collective and before
//          the shards get theirs, on the stream it was given.
// World:   2 or 4 ranks as threads; root and 2 blocks of width 4, gradients of 16 elements a block.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <thread>

#include "engine/core/error.h"
#include "sharding/streams.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using test::run_world;

void double_row(const ReduceOutput& row) {
  ASSERT_EQ(row.dtype, DType::kF32);
  for (std::int64_t i = 0; i < row.elems; ++i) static_cast<float*>(row.data)[i] *= 2;
}

std::vector<double> gradient(nn::Module& model, std::string_view path) {
  for (auto& [name, values] : test::gradients(model)) {
    if (name == path) return values;
  }
  return {};
}

std::vector<double> times_two(std::vector<double> values) {
  for (double& value : values) value *= 2;
  return values;
}

struct Way {
  int ranks;
  int shard_size;
  device::ExecutorKind executor;
};

class AllReduceHooks : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Meshes, AllReduceHooks,
                         ::testing::Values(Way{2, 2, device::ExecutorKind::kInline},
                                           Way{2, 2, device::ExecutorKind::kThreaded},
                                           Way{4, 2, device::ExecutorKind::kThreaded},
                                           Way{1, 1, device::ExecutorKind::kInline}),
                         [](const auto& info) {
                           return fmt::format("{}RanksOver{}{}", info.param.ranks, info.param.shard_size,
                                              info.param.executor == device::ExecutorKind::kThreaded ? "Threaded" : "");
                         });

TEST_P(AllReduceHooks, ChangeTheGradientsOfTheirModuleAlone) {
  run_world(
      GetParam().ranks,
      [](RankContext& context, comm::World& world) {
        const FullyShardOptions options = test::sharded_over(world, GetParam().shard_size);
        const auto plain = test::sharded_chain(test::kEvenWidth, 2, options);
        const auto hooked = test::sharded_chain(test::kEvenWidth, 2, options);
        set_all_reduce_hook(hooked->block(0), double_row);
        const Tensor input = test::toy_input(context.rank(), 3, test::kEvenWidth);
        for (nn::Module* chain : {static_cast<nn::Module*>(plain.get()), static_cast<nn::Module*>(hooked.get())}) {
          test::forward_backward(*chain, input);
        }
        EXPECT_EQ(gradient(*hooked, "layers.0.weight"), times_two(gradient(*plain, "layers.0.weight")));
        EXPECT_EQ(gradient(*hooked, "layers.1.weight"), gradient(*plain, "layers.1.weight"));
        EXPECT_EQ(gradient(*hooked, "weight"), gradient(*plain, "weight"));
        set_all_reduce_hook(hooked->block(0), {});
        for (nn::Module* chain : {static_cast<nn::Module*>(plain.get()), static_cast<nn::Module*>(hooked.get())}) {
          for (const Tensor& parameter : chain->parameters()) parameter.set_grad({});
          test::forward_backward(*chain, input);
        }
        EXPECT_EQ(test::gradients(*hooked), test::gradients(*plain));
      },
      {.executor = GetParam().executor});
}

TEST(AllReduceHook, GetsTheRowOfTheReduceScatterInTheReduceDtype) {
  run_world(2, [](RankContext& context, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.policy.param_dtype = DType::kBF16;
    options.policy.reduce_dtype = DType::kF32;
    const auto chain = test::sharded_chain(test::kEvenWidth, 2, options);
    std::vector<double> row;
    set_all_reduce_hook(chain->block(1), [&](const ReduceOutput& output) {
      ASSERT_EQ(output.dtype, DType::kF32);
      const auto* values = static_cast<const float*>(output.data);
      row.assign(values, values + output.elems);
    });
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, test::kEvenWidth));
    EXPECT_EQ(row, gradient(*chain, "layers.1.weight"));
  });
}

TEST(AllReduceHook, SeesTheSumOfAllPartialsOnce) {
  run_world(4, [](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(test::kEvenWidth, 1, test::sharded_over(world, 2));
    int calls = 0;
    set_all_reduce_hook(chain->block(0), [&](const ReduceOutput&) { ++calls; });
    set_requires_all_reduce(*chain, false);
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, test::kEvenWidth));
    EXPECT_EQ(calls, 0);
    set_requires_all_reduce(*chain, true);
    test::forward_backward(*chain, test::toy_input(context.rank() + 4, 3, test::kEvenWidth));
    EXPECT_EQ(calls, 1);
  });
}

TEST(AllReduceHook, RunsOnTheStreamItIsGiven) {
  run_world(2,
            [](RankContext& context, comm::World& world) {
              device::Device& device = device::Device::current();
              device::Stream own(sharding::kAllReduceStream, device::ExecutorKind::kThreaded, &context, &device.log());
              std::thread::id thread_of_own, thread_of_hook;
              own.submit({"look", "", {}, [&] { thread_of_own = std::this_thread::get_id(); }});
              const auto chain = test::sharded_chain(test::kEvenWidth, 1, test::sharded_over_all(world));
              const auto plain = test::sharded_chain(test::kEvenWidth, 1, test::sharded_over_all(world));
              set_all_reduce_hook(
                  chain->block(0),
                  [&](const ReduceOutput& row) {
                    thread_of_hook = std::this_thread::get_id();
                    double_row(row);
                  },
                  &own);
              test::forward_backward(*chain, test::toy_input(0, 3, test::kEvenWidth));
              test::forward_backward(*plain, test::toy_input(0, 3, test::kEvenWidth));
              EXPECT_EQ(thread_of_hook, thread_of_own);
              EXPECT_EQ(gradient(*chain, "layers.0.weight"), times_two(gradient(*plain, "layers.0.weight")));
            },
            {.executor = device::ExecutorKind::kThreaded});
}

TEST(AllReduceHook, WithAStreamIsRefusedWhereTheMeshHasReplicas) {
  run_world(4, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kEvenWidth, 1, test::sharded_over(world, 2));
    device::Stream& stream = device::Device::current().stream(device::StreamId::kH2D);
    EXPECT_EQ(
        message_of<ConfigError>([&] { set_all_reduce_hook(chain->block(0), double_row, &stream); }),
        fmt::format("set_all_reduce_hook of a ToyBlock: stream '{}' is given, but the mesh has 2 replicas and the "
                    "hook follows their all-reduce on its stream; give no stream",
                    stream.name()));
  });
}

TEST(AllReduceHook, ThatThrowsEndsTheBackwardWithItsError) {
  run_world(1, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kEvenWidth, 1, test::sharded_over_all(world));
    set_all_reduce_hook(chain->block(0), [](const ReduceOutput&) { throw DeviceError("the hook's own"); });
    EXPECT_EQ(message_of<DeviceError>([&] { test::forward_backward(*chain, test::toy_input(0, 3, test::kEvenWidth)); }),
              "the hook's own");
  });
}

}  // namespace
}  // namespace loom::sharding
