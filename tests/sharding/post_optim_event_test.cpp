// Promise: after set_post_optim_event the next forward gathers what the optimizer wrote, waiting for its event and for
//          nothing else; the forward after it waits for compute again.
// World:   2 ranks as threads, threaded executor; root and 2 blocks of width 4.
#include <chrono>
#include <condition_variable>
#include <gtest/gtest.h>
#include <mutex>
#include <thread>

#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;

void on_two_ranks(const launch::RankMain& main) {
  test::run_world(2, main, {.executor = device::ExecutorKind::kThreaded});
}

// What the chain gives when every weight is scaled by two.
std::vector<double> of_doubled_weights(const FullyShardOptions& options, const Tensor& input) {
  const auto chain = test::sharded_chain(test::kEvenWidth, 2, options);
  for (const Tensor& parameter : chain->parameters()) parameter.copy_from(ops::scale(parameter.detach(), 2));
  return (*chain)(input).tensor().to_vector<double>();
}

// An optimizer on a stream of its own: late, and seen by nobody but through its event.
device::Event double_weights_later(nn::Module& model, device::Stream& stream) {
  for (const Tensor& parameter : model.parameters()) {
    stream.submit({"optimizer", "", {}, [values = parameter.data<float>(), elems = parameter.numel()] {
                     std::this_thread::sleep_for(std::chrono::milliseconds(20));
                     for (std::int64_t i = 0; i < elems; ++i) values[i] *= 2;
                   }});
  }
  return stream.record();
}

TEST(PostOptimEvent, MakesTheNextForwardGatherWhatTheOptimizerWrote) {
  on_two_ranks([](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    const auto chain = test::sharded_chain(test::kEvenWidth, 2, options);
    const Tensor input = test::toy_input(0, 3, test::kEvenWidth);
    test::forward_backward(*chain, input);
    set_post_optim_event(*chain,
                         double_weights_later(*chain, device::Device::current().stream(device::StreamId::kH2D)));
    EXPECT_EQ((*chain)(input).tensor().to_vector<double>(), of_doubled_weights(options, input));
  });
}

TEST(PostOptimEvent, MayBeSetBeforeTheFirstForwardAndHoldsForThatOneOnly) {
  on_two_ranks([](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    const auto chain = test::sharded_chain(test::kEvenWidth, 2, options);
    const Tensor input = test::toy_input(0, 3, test::kEvenWidth);
    set_post_optim_event(*chain,
                         double_weights_later(*chain, device::Device::current().stream(device::StreamId::kH2D)));
    EXPECT_TRUE(FsdpState::of(*chain)->has_post_optim_event());
    EXPECT_EQ((*chain)(input).tensor().to_vector<double>(), of_doubled_weights(options, input));
    EXPECT_FALSE(FsdpState::of(*chain)->has_post_optim_event());
  });
}

TEST(PostOptimEvent, IsTakenByAModuleThatRunsAloneToo) {
  on_two_ranks([](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kEvenWidth, 2, test::sharded_over_all(world));
    const Tensor input = test::toy_input(0, 3, test::kEvenWidth);
    test::forward_backward(*chain, input);
    set_post_optim_event(*chain, device::Event());
    chain->block(1)(input);
    EXPECT_FALSE(FsdpState::of(*chain)->has_post_optim_event());
  });
}

TEST(PostOptimEvent, OfAnOptimizerThatFailedEndsTheForwardWithItsError) {
  on_two_ranks([](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kEvenWidth, 2, test::sharded_over_all(world));
    device::Stream& stream = device::Device::current().stream(device::StreamId::kH2D);
    stream.submit({"optimizer", "", {}, [] { throw DeviceError("the optimizer's own"); }});
    set_post_optim_event(*chain, stream.record());
    EXPECT_EQ(message_of<DeviceError>([&] { (*chain)(test::toy_input(0, 3, test::kEvenWidth)); }),
              "the optimizer's own");
  });
}

TEST(PostOptimEvent, OfAModuleThatIsNotTheRootIsRefused) {
  on_two_ranks([](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kEvenWidth, 2, test::sharded_over_all(world));
    const Tensor input = test::toy_input(0, 3, test::kEvenWidth);
    (*chain)(input);
    EXPECT_EQ(
        message_of<ConfigError>([&] { set_post_optim_event(chain->block(1), device::Event()); }),
        "set_post_optim_event of 'layers.1' (a ToyBlock): the event belongs to the root, a ToyChain; set it there");
    const auto fresh = test::sharded_chain(test::kEvenWidth, 2, test::sharded_over_all(world));
    set_post_optim_event(fresh->block(0), device::Event());
    EXPECT_EQ(
        message_of<ConfigError>([&] { (*fresh)(input); }),
        "set_post_optim_event was called for 'layers.0' (a ToyBlock), but the root is a ToyChain; call it for the "
        "root");
  });
}

}  // namespace
}  // namespace loom::sharding
