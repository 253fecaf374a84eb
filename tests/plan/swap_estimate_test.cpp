// Promise: what swap costs is summed by block, to the nanosecond: bytes that leave, what compute waits for, and the
//          forward that recompute would run again; one line says where recompute is cheaper.
// World:   recordings and times made by hand.
#include "engine/plan/swap_estimate.h"

#include <gmock/gmock.h>

namespace loom::plan {
namespace {

using device::Entry;
using device::EntryKind;
using device::StreamId;
using device::WorkKind;

class Step {
 public:
  void phase(const std::string& name) { add({.kind = EntryKind::kPhase, .name = text(name)}, {}); }
  void kernel(const std::string& site, std::int64_t start, std::int64_t end) {
    add({.kind = EntryKind::kKernel, .name = text("linear"), .site = text(site)}, {start, start, end});
  }
  std::int64_t copy(WorkKind work, const std::string& block, std::int64_t bytes, std::int64_t start, std::int64_t end) {
    const bool out = work == WorkKind::kD2H;
    return add({.kind = EntryKind::kCopy,
                .stream = out ? StreamId::kD2H : StreamId::kH2D,
                .name = text(out ? "swap_d2h" : "swap_h2d"),
                .subject = text(block),
                .cost = {.read_bytes = bytes, .work = work}},
               {start, start, end});
  }
  void wait(std::int64_t other, std::int64_t issued, std::int64_t end) {
    add({.kind = EntryKind::kStreamWait, .other = other}, {issued, end, end});
  }
  void host_wait(std::int64_t other, std::int64_t issued, std::int64_t end) {
    add({.kind = EntryKind::kHostWait, .other = other}, {issued, issued, end});
  }
  std::vector<SwapEstimate> costs(const std::vector<SwappedModules>& swapped) const {
    return estimate_swap(recording_, times_, swapped);
  }

 private:
  std::int32_t text(const std::string& words) {
    recording_.texts.push_back(words);
    return static_cast<std::int32_t>(recording_.texts.size()) - 1;
  }
  std::int64_t add(const Entry& entry, const virtual_time::EntryTime& time) {
    recording_.entries.push_back(entry);
    times_.entries.push_back(time);
    return static_cast<std::int64_t>(recording_.entries.size()) - 1;
  }

  device::Recording recording_;
  virtual_time::RankTimes times_;
};

// Texts are stored once in a real recording; a step by hand names a block anew for each copy, which is summed alike.
TEST(SwapEstimate, SumsWaitsAndForwardsByBlock) {
  Step step;
  step.phase("forward");
  step.kernel("Model > layers.1 (Block)", 0, 100);
  const std::int64_t out = step.copy(WorkKind::kD2H, "layers.1", 512, 100, 400);
  step.copy(WorkKind::kD2H, "layers.1", 256, 400, 410);
  step.kernel("Model > layers.10 (Block)", 100, 200);
  step.wait(out, 20, 400);  // compute was free at 200
  step.phase("backward");
  const std::int64_t back = step.copy(WorkKind::kH2D, "layers.1", 512, 400, 600);
  step.kernel("Model > layers.1 (Block)", 400, 450);
  step.wait(back, 580, 600);  // the host came late: that is not the copy's doing
  step.phase("forward");
  step.kernel("Model > layers.1 (Block) > layers.1.up (Linear)", 600, 640);
  const auto costs = step.costs({{"layers.1", {"layers.1"}}});
  ASSERT_EQ(costs.size(), 1U);
  EXPECT_EQ(costs[0].block, "layers.1");
  EXPECT_EQ(costs[0].copies, 2);
  EXPECT_EQ(costs[0].out_bytes, 768);
  EXPECT_EQ(costs[0].exposed_ns, 200 + 20);
  EXPECT_EQ(costs[0].recompute_ns, 100 + 40);
}

TEST(SwapEstimate, CountsForwardsOfTheSwappedModulesAlone) {
  Step step;
  step.phase("forward");
  step.kernel("Outer > model.layers.0 (Layer) > model.layers.0.attn (Attention)", 0, 30);
  step.kernel("Outer > model.layers.0 (Layer) > model.layers.0.mlp (Mlp)", 30, 100);
  const std::int64_t out = step.copy(WorkKind::kD2H, "layers.0", 8, 30, 90);
  step.host_wait(out, 10, 120);  // pageable: the host waits, and compute was done at 100
  // Paths are relative to the model inside its wrapper.
  const auto costs = step.costs({{"layers.0", {"layers.0.attn"}}});
  ASSERT_EQ(costs.size(), 1U);
  EXPECT_EQ(costs[0].recompute_ns, 30);
  EXPECT_EQ(costs[0].exposed_ns, 20);
}

TEST(SwapEstimate, IsASentenceAndOneOfAdvice) {
  EXPECT_EQ(to_text(std::vector<SwapEstimate>{}), "");
  const SwapEstimate hidden{
      .block = "a", .copies = 1, .out_bytes = 1 << 29, .exposed_ns = 0, .recompute_ns = 5'000'000};
  const SwapEstimate exposed{
      .block = "b", .copies = 3, .out_bytes = 1 << 29, .exposed_ns = 3'000'000, .recompute_ns = 1'500'000};
  EXPECT_EQ(to_text({hidden}),
            "  swap: 1 tensor of 1 block, 512.00 MiB to the host and back; compute waits 0 ns for their copies\n");
  EXPECT_EQ(to_text({hidden, exposed}),
            "  swap: 4 tensors of 2 blocks, 1.00 GiB to the host and back; compute waits 3.00 ms for their copies\n"
            "  recompute is cheaper than swap for 1 of 2 blocks ('b'): compute waits 3.00 ms a step for their\n"
            "    copies, and computing the same again takes 1.50 ms; list them in recompute_modules instead\n");
}

}  // namespace
}  // namespace loom::plan
