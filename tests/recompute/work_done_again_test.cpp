// Promise: forward runs twice, once in forward and once in backward, and the kind that is not reentrant stops behind
//          the last tensor needed.
// World:   one rank; the numbers are calls of forward, begun and ended.
#include <algorithm>
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "tests/recompute/toys.h"

namespace loom {
namespace {

using test::Kind;
using ::testing::ElementsAre;

TEST(WorkDoneAgain, ReentrantRunsTheWholeForward) {
  test::OneRank rank;
  const auto block = test::twist(2);
  test::fill(*block);
  test::checkpoint(*block, Kind::kReentrant);
  autograd::backward(ops::mean((*block)(test::input(2))));
  EXPECT_THAT((std::vector{block->begun, block->ended}), ElementsAre(2, 2));
}

TEST(WorkDoneAgain, OtherwiseItStopsBehindTheLastTensorThatIsNeeded) {
  test::OneRank rank;
  const auto saves = test::twist(2);
  const auto saves_nothing = std::make_shared<test::Fn>(
      2, [](const nn::Args& args, const Tensor&) -> nn::Value { return ops::scale(args.tensor(0), 3); });
  test::Chain chain({saves, saves_nothing});
  test::fill(chain);
  test::checkpoint(chain, Kind::kRecorded);
  autograd::backward(ops::mean(chain(test::input(2))));
  EXPECT_THAT((std::vector{saves->begun, saves->ended}), ElementsAre(2, 1));  // left inside its last product
  EXPECT_THAT((std::vector{saves_nothing->begun, saves_nothing->ended}), ElementsAre(1, 1));
}

// A product keeps its input and needs nothing of its result: PyTorch saves before it computes.
TEST(WorkDoneAgain, TheProductThatKeptTheLastTensorIsNotComputedAgain) {
  test::OneRank rank;
  const auto first = test::twist(2);
  const auto last = std::make_shared<test::Fn>(2, [](const nn::Args& args, const Tensor& weight) -> nn::Value {
    return ops::linear(args.tensor(0), ops::reshape(weight, {1, 2}));
  });
  test::Chain chain({first, last});
  test::fill(chain);
  test::checkpoint(chain, Kind::kRecorded);
  const Tensor loss = ops::mean(chain(test::input(2)));
  const device::Recorder recorder(rank.device());
  autograd::backward(loss);
  const device::Recording recording = recorder.recording();
  const auto again = std::ranges::count_if(
      recording.entries, [&](const device::Entry& entry) { return recording.text(entry.name) == "linear"; });
  EXPECT_EQ(again, 0);
}

TEST(WorkDoneAgain, WithoutEarlyStopItRunsToItsEnd) {
  test::OneRank rank;
  const auto block = test::twist(2);
  test::fill(*block);
  recompute::checkpoint(*block, {.path = "block", .use_reentrant = false, .early_stop = false});
  autograd::backward(ops::mean((*block)(test::input(2))));
  EXPECT_THAT((std::vector{block->begun, block->ended}), ElementsAre(2, 2));
}

TEST(WorkDoneAgain, OncePerBackwardThatPassesThrough) {
  test::OneRank rank;
  test::Fn block(2, [](const nn::Args& args, const Tensor& w) -> nn::Value {
    return nn::ValueList{ops::mul(args.tensor(0), w), ops::mul(args.tensor(1), w)};  // two graphs that share nothing
  });
  test::fill(block);
  test::checkpoint(block, Kind::kRecorded);
  const nn::Value out = block(test::input(2), test::input(2));
  autograd::backward(ops::mean(out.list()[0]));
  EXPECT_EQ(block.begun, 2);
  autograd::backward(ops::mean(out.list()[1]));
  EXPECT_EQ(block.begun, 3);
}

// The inner block runs in forward, with the outer one, and for itself; for the recorded kind, the outer run ends before
// it, at its input.
TEST(WorkDoneAgain, ACheckpointInsideAnotherRunsOnceMore) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    test::OneRank rank;
    const auto first = test::twist(2), inner = test::twist(2);
    test::Chain chain({first, inner});
    test::fill(chain);
    test::checkpoint(chain, kind, "");
    test::checkpoint(*inner, kind, "1");
    autograd::backward(ops::mean(chain(test::input(2))));
    EXPECT_EQ(first->begun, 2) << test::to_string(kind);
    EXPECT_EQ(inner->begun, kind == Kind::kReentrant ? 3 : 2) << test::to_string(kind);
  }
}

TEST(WorkDoneAgain, HooksRegisteredBeforeAreInsideThoseRegisteredLaterOutside) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    test::OneRank rank;
    const auto block = test::twist(2);
    test::fill(*block);
    std::vector<std::string> calls;
    const auto note = [&](const char* name) {
      block->register_pre_hook([&calls, name](nn::Module&, nn::Args&) { calls.emplace_back(name); });
    };
    note("inside");
    test::checkpoint(*block, kind);
    note("outside");
    const Tensor y = (*block)(test::input(2));
    calls.emplace_back("backward");
    autograd::backward(ops::mean(y));
    EXPECT_THAT(calls, ElementsAre("outside", "inside", "backward", "inside")) << test::to_string(kind);
  }
}

}  // namespace
}  // namespace loom
