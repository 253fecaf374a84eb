// Promise: a rank that throws inside forward or backward ends the job with its reason, and no peer hangs.
// World:   3 ranks as threads; blocks 0, 1, 2; rank 1 fails in block 1. Deadline 20 s.
#include <gmock/gmock.h>
#include <mutex>

#include "engine/core/error.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using ::testing::HasSubstr;

constexpr const char* kReason = "[rank 1] the loss is not a number";

struct Setting {
  GatherLayout layout;
  device::ExecutorKind executor;
};

class RankFailure : public ::testing::TestWithParam<Setting> {
 protected:
  // What the job ends with, and what ranks 0 and 2 were told.
  void run(const std::function<void(test::ToyChain&)>& sabotage) {
    const auto main = [&](RankContext& context, comm::World& world) {
      try {
        const auto chain = test::sharded_chain(4, 3, test::sharded_over_all(world, GetParam().layout));
        if (context.rank() == 1) sabotage(*chain);
        test::forward_backward(*chain, test::toy_input(0, 2, 4));
        device::Device::current().synchronize();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        told_[context.rank()] = error.what();
        throw;
      }
    };
    try {
      test::run_world(3, main, {.executor = GetParam().executor, .timeout = std::chrono::seconds(20)});
    } catch (const std::exception& error) {
      job_ = error.what();
    }
  }

  void expect_everyone_knows() {
    EXPECT_EQ(job_, kReason);
    EXPECT_EQ(told_[1], kReason);
    for (const int rank : {0, 2}) {
      EXPECT_THAT(told_[rank], HasSubstr(fmt::format("[rank {}] ", rank)));
      EXPECT_THAT(told_[rank], HasSubstr(fmt::format("rank 1 failed first: {}", kReason)));
    }
  }

 private:
  std::mutex mutex_;
  std::map<int, std::string> told_;
  std::string job_;
};

TEST_P(RankFailure, InForwardIsTheReasonOfAll) {
  run([](test::ToyChain& chain) {
    chain.layers[1].register_pre_hook([](nn::Module&, nn::Args&) { raise<DeviceError>("the loss is not a number"); });
  });
  expect_everyone_knows();
}

TEST_P(RankFailure, InBackwardIsTheReasonOfAll) {
  run([](test::ToyChain& chain) {
    chain.layers[1].register_post_hook([](nn::Module&, nn::Value output) {
      output.tensor().register_hook([](const Tensor&) -> Tensor { raise<DeviceError>("the loss is not a number"); });
      return output;
    });
  });
  expect_everyone_knows();
}

INSTANTIATE_TEST_SUITE_P(Settings, RankFailure,
                         ::testing::Values(Setting{GatherLayout::kBuffered, device::ExecutorKind::kInline},
                                           Setting{GatherLayout::kFast, device::ExecutorKind::kInline},
                                           Setting{GatherLayout::kBuffered, device::ExecutorKind::kThreaded},
                                           Setting{GatherLayout::kFast, device::ExecutorKind::kThreaded}),
                         [](const auto& info) {
                           return fmt::format(
                               "{}{}", info.param.layout == GatherLayout::kFast ? "Fast" : "Buffered",
                               info.param.executor == device::ExecutorKind::kInline ? "Inline" : "Threaded");
                         });

}  // namespace
}  // namespace loom::sharding
