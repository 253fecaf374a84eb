// Promise: roots that share a comm context hold one reduction between them, with the bits and the order of roots apart.
// World:   2 ranks as threads; two chains of 2 blocks of width 8 after one another, one backward through both.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "sharding/memory.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using test::run_world;

constexpr std::int64_t kWidth = 8;

struct Trained {
  std::vector<std::pair<std::string, std::vector<double>>> gradients[2];
  std::vector<std::string> events;
  std::int64_t peak_reduce_bytes = 0;
  bool operator==(const Trained&) const = default;
};

Trained train(comm::World& world, bool shared, int rank) {
  FullyShardOptions options = test::sharded_over_all(world);
  options.reshard_after_forward = true;
  const auto first = test::sharded_chain(kWidth, 2, options);
  const auto second = test::sharded_chain(kWidth, 2, options);
  if (shared) share_comm_ctx({first.get(), second.get()});
  device::Device& device = device::Device::current();
  device.memory().reset_peaks();
  const device::Recorder recorder(device);
  for (int step = 0; step < 2; ++step) {
    const Tensor loss = ops::mean((*second)((*first)(test::toy_input(2 * step + rank, 3, kWidth))));
    autograd::backward(loss);
  }
  Trained trained;
  for (const test::Issued& entry : test::issued(recorder.recording())) {
    if (entry.is_mark()) trained.events.push_back(fmt::format("{}:{}", entry.name, entry.subject));
  }
  trained.gradients[0] = test::gradients(*first);
  trained.gradients[1] = test::gradients(*second);
  trained.peak_reduce_bytes = device.memory().stats().peak_by_category[kReduceBuffer];
  return trained;
}

TEST(SharedCommContext, GivesTheBitsAndTheOrderOfRootsApartInOneReductionsMemory) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const Trained apart = train(world, false, context.rank());
    const Trained shared = train(world, true, context.rank());
    EXPECT_EQ(shared.gradients[0], apart.gradients[0]);
    EXPECT_EQ(shared.gradients[1], apart.gradients[1]);
    EXPECT_EQ(shared.events, apart.events);
    const std::int64_t input_bytes = 512;  // 64 elements of fp32 are 256 bytes, counted as 512
    EXPECT_EQ(apart.peak_reduce_bytes, 2 * input_bytes);
    EXPECT_EQ(shared.peak_reduce_bytes, input_bytes);
  });
}

// The end of one root's backward leaves what the other one's backward still needs.
TEST(SharedCommContext, HoldsThroughBackwardsOneRootAfterTheOther) {
  run_world(2, [](RankContext& context, comm::World& world) {
    const auto gradients = [&](bool shared) {
      FullyShardOptions options = test::sharded_over_all(world);
      options.reshard_after_forward = true;
      const auto first = test::sharded_chain(kWidth, 3, options);
      const auto second = test::sharded_chain(kWidth, 3, options);
      if (shared) share_comm_ctx({first.get(), second.get()});
      const Tensor input = test::toy_input(context.rank(), 3, kWidth);
      const Tensor of_first = ops::mean((*first)(input));
      const Tensor of_second = ops::mean((*second)(input));
      autograd::backward(of_second);
      autograd::backward(of_first);
      return std::pair(test::gradients(*first), test::gradients(*second));
    };
    EXPECT_EQ(gradients(true), gradients(false));
  });
}

TEST(SharedCommContext, ComesBeforeTheFirstForwardAndBelongsToRoots) {
  run_world(2, [](RankContext&, comm::World& world) {
    const Tensor input = test::toy_input(0, 3, kWidth);
    const auto ran = test::sharded_chain(kWidth, 1, test::sharded_over_all(world));
    const auto fresh = test::sharded_chain(kWidth, 1, test::sharded_over_all(world));
    (*ran)(input);
    EXPECT_EQ(message_of<ConfigError>([&] {
                share_comm_ctx({fresh.get(), ran.get()});
              }),
              "share_comm_ctx of a ToyChain that has run forward already; call it before the first forward");
    const auto other = test::sharded_chain(kWidth, 1, test::sharded_over_all(world));
    share_comm_ctx({other.get(), &fresh->layers[0]});
    EXPECT_EQ(
        message_of<ConfigError>([&] { (*fresh)(input); }),
        "share_comm_ctx was called for 'layers.0' (a ToyBlock), but the root is a ToyChain; call it for the root");
  });
}

}  // namespace
}  // namespace loom::sharding
