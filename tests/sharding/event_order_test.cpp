// Promise: gathers, waits, reshards and reductions come in PyTorch FSDP2's order, on every rank, whatever the layout
//          and the executor.
// World:   2 ranks as threads; root R and blocks 0, 1, 2. A gather issued, w waited for and usable, f freed, S
//          reduction issued.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "sharding/memory.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;

// "AR wR A0 ..." of the marks.
std::string events(const device::Recording& recording) {
  static const std::vector<std::pair<std::string, std::string>> kLetters{
      {"AG", "A"}, {"W", "w"}, {"RE", "f"}, {"RS", "S"}, {"RSAR", "S"}};
  std::string text;
  for (const test::Issued& entry : test::issued(recording)) {
    if (!entry.is_mark()) continue;
    for (const auto& [mark, letter] : kLetters) {
      if (entry.name == mark) {
        text += (text.empty() ? "" : " ") + letter +
                (entry.subject.empty() ? "R" : entry.subject.substr(entry.subject.find('.') + 1));
      }
    }
  }
  return text;
}

struct Order {
  std::string forward;
  std::string backward;
};

// One training step of a chain of three blocks.
Order order_of_step(test::ToyChain& chain) {
  device::Recorder recorder(device::Device::current());
  const Tensor loss = ops::mean(chain(test::toy_input(0, 2, 4)));
  const std::string forward = events(recorder.recording());
  recorder.clear();
  autograd::backward(loss);
  return {forward, events(recorder.recording())};
}

void prefetch_forward(test::ToyChain& chain, std::size_t count) {
  for (std::size_t i = 0; i < chain.layers.size(); ++i) {
    std::vector<nn::Module*> targets;
    for (std::size_t k = i + 1; k < chain.layers.size() && k <= i + count; ++k) targets.push_back(&chain.layers[k]);
    set_modules_to_forward_prefetch(chain.layers[i], targets);
  }
}

void prefetch_backward(test::ToyChain& chain, std::size_t count) {
  for (std::size_t i = 0; i < chain.layers.size(); ++i) {
    std::vector<nn::Module*> targets;
    for (std::size_t k = 1; k <= count && k <= i; ++k) targets.push_back(&chain.layers[i - k]);
    set_modules_to_backward_prefetch(chain.layers[i], targets);
  }
}

struct Setting {
  GatherLayout layout;
  device::ExecutorKind executor;
};

class EventOrder : public ::testing::TestWithParam<Setting> {
 protected:
  using Prepare = std::function<void(test::ToyChain&)>;

  void expect(std::optional<bool> reshard_after_forward, const Prepare& prepare, const std::string& forward,
              const std::string& backward) {
    run_world(2,
              [&](RankContext& context, comm::World& world) {
                FullyShardOptions options = test::sharded_over_all(world, GetParam().layout);
                options.reshard_after_forward = reshard_after_forward;
                const auto chain = test::sharded_chain(4, 3, options);
                prepare(*chain);
                for (int step = 0; step < 2; ++step) {  // a step leaves nothing behind for the next
                  const Order order = order_of_step(*chain);
                  EXPECT_EQ(order.forward, forward) << "rank " << context.rank() << " step " << step;
                  EXPECT_EQ(order.backward, backward) << "rank " << context.rank() << " step " << step;
                }
              },
              {.executor = GetParam().executor});
  }
};

const auto kNothing = [](test::ToyChain&) {};
constexpr const char* kForward = "AR wR A0 w0 f0 A1 w1 f1 A2 w2 f2";
constexpr const char* kBackward = "A2 w2 A1 f2 S2 w1 A0 f1 S1 w0 f0 S0 fR SR";

TEST_P(EventOrder, TheRootStaysWholeAndBackwardGathersOneGroupAhead) {
  expect(std::nullopt, kNothing, kForward, kBackward);
}

TEST_P(EventOrder, ARootThatIsToldToReshardIsFreedAndGatheredOnceMoreAtTheStartOfBackward) {
  expect(true, kNothing, std::string(kForward) + " fR", "AR wR A2 w2 A1 f2 S2 w1 A0 f1 S1 w0 f0 S0 fR SR");
}

TEST_P(EventOrder, WithoutReshardingBackwardGathersNothing) {
  expect(false, kNothing, "AR wR A0 w0 A1 w1 A2 w2", "f2 S2 f1 S1 f0 S0 fR SR");
}

TEST_P(EventOrder, ForwardPrefetchOfOneIsIssuedAfterTheGroupsOwnWait) {
  expect(
      std::nullopt, [](test::ToyChain& chain) { prefetch_forward(chain, 1); }, "AR wR A0 w0 A1 f0 w1 A2 f1 w2 f2",
      kBackward);
}

TEST_P(EventOrder, ForwardPrefetchOfTwoIssuesTwoAtOnce) {
  expect(
      std::nullopt, [](test::ToyChain& chain) { prefetch_forward(chain, 2); }, "AR wR A0 w0 A1 A2 f0 w1 f1 w2 f2",
      kBackward);
}

TEST_P(EventOrder, BackwardPrefetchOfTwoReplacesTheDefault) {
  // The root's pre-backward has no list of its own and gathers block 2, as by default.
  expect(
      std::nullopt, [](test::ToyChain& chain) { prefetch_backward(chain, 2); }, kForward,
      "A2 w2 A1 A0 f2 S2 w1 f1 S1 w0 f0 S0 fR SR");
}

TEST_P(EventOrder, AnEmptyBackwardListRestoresTheDefault) {
  expect(
      std::nullopt,
      [](test::ToyChain& chain) {
        prefetch_backward(chain, 2);
        prefetch_backward(chain, 0);
      },
      kForward, kBackward);
}

INSTANTIATE_TEST_SUITE_P(Settings, EventOrder,
                         ::testing::Values(Setting{GatherLayout::kBuffered, device::ExecutorKind::kInline},
                                           Setting{GatherLayout::kFast, device::ExecutorKind::kInline},
                                           Setting{GatherLayout::kBuffered, device::ExecutorKind::kThreaded},
                                           Setting{GatherLayout::kFast, device::ExecutorKind::kThreaded}),
                         [](const auto& info) {
                           return fmt::format(
                               "{}{}", info.param.layout == GatherLayout::kFast ? "Fast" : "Buffered",
                               info.param.executor == device::ExecutorKind::kInline ? "Inline" : "Threaded");
                         });

// --- Gathers that are issued and not used

TEST(UnusedPrefetch, IsDroppedByTheEndOfBackwardAndTheNextStepIsSound) {
  for (const GatherLayout layout : {GatherLayout::kBuffered, GatherLayout::kFast}) {
    run_world(2, [&](RankContext&, comm::World& world) {
      const auto chain = test::sharded_chain(4, 3, test::sharded_over_all(world, layout));
      // Backward of block 2 gathers block 0 too, which did not run.
      prefetch_backward(*chain, 2);
      chain->skipped = {0};
      const Order order = order_of_step(*chain);
      EXPECT_EQ(order.backward, "A2 w2 A1 A0 f2 S2 w1 f1 S1 fR SR");
      EXPECT_TRUE(FsdpState::of(chain->block(0))->group()->is_sharded());
      const device::MemStats stats = device::Device::current().memory().stats();
      EXPECT_EQ(stats.by_category[kGatherBuffer], 0);
      EXPECT_EQ(stats.by_category[device::MemCategory::kParameter], 0);
      chain->skipped = {};
      EXPECT_EQ(order_of_step(*chain).forward, kForward);
    });
  }
}

TEST(UnusedPrefetch, OfAForwardWithoutGradIsDroppedAtItsEnd) {
  // Block 0 prefetches block 1, which is left out; a gather that stayed would hold the old weights.
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(4, 3, test::sharded_over_all(world));
    prefetch_forward(*chain, 1);
    chain->skipped = {1};
    const autograd::NoGrad no_grad;
    (*chain)(test::toy_input(0, 2, 4));
    EXPECT_TRUE(FsdpState::of(chain->block(1))->group()->is_sharded());
    const device::MemStats stats = device::Device::current().memory().stats();
    EXPECT_EQ(stats.by_category[kGatherBuffer], 0);
  });
}

}  // namespace
}  // namespace loom::sharding
