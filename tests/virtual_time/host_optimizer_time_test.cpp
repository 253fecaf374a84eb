// Promise: what an optimizer on the host, or state that is swapped, adds to a step is what formulas say: how much of
//          the copies and of the CPU's work is hidden, and how much is not.
// World:   dry runs of one rank. Swapped AdamW: the tiny device, on which an element's update takes 28 ns, its moments
//          8 ns to come and 16 to leave. Offload: a toy chain of three blocks under a root over two ranks, where only
//          products (C = 30 ns), copies to the host (D = 20 ns a group) and the CPU's updates (A ns a group) take time.
#include <gmock/gmock.h>

#include "engine/nn/optim/adamw.h"
#include "engine/nn/optim/sgd.h"
#include "engine/nn/optim/swapped_adamw.h"
#include "tests/virtual_time/toy_step.h"

namespace loom::test {
namespace {

// --- Swapped moments

constexpr std::int64_t kElems = 1000;  // of a parameter

// A step of parameters of kElems elements; link times this factor.
std::int64_t swapped_step_ns(int parameters, const nn::MomentSwap& swap, double slower, std::int64_t memory_bytes) {
  RankContext context(0, 1);
  const RankScope scope(context);
  device::Device& device =
      device::Device::install(context, {.profile = {.memory_bytes = memory_bytes}, .dry_run = true});
  nn::ParameterGroups groups(1);
  for (int i = 0; i < parameters; ++i) {
    const Tensor value = Tensor::empty({kElems}, DType::kF32);
    value.set_requires_grad(true);
    value.set_grad(Tensor::empty({kElems}, DType::kF32));
    groups[0].parameters.push_back({"p", value, nn::ShardSpec::whole({kElems})});
  }
  nn::SwappedAdamW optimizer(std::move(groups), {}, swap);
  optimizer.step();
  device.synchronize();
  const device::Recorder recorder(device);
  optimizer.step();
  virtual_time::HardwareProfile profile = tiny_profile();
  profile.host_link.h2d_pinned_bytes_per_s /= slower;
  profile.host_link.d2h_pinned_bytes_per_s /= slower;
  const device::Recording recording = recorder.recording();
  const virtual_time::RankRecording rank{0, &recording};
  return virtual_time::resolve({&rank, 1}, virtual_time::TimeModel(profile)).end_ns;
}

constexpr std::int64_t kUpdate = 28 * kElems, kIn = 8 * kElems, kOut = 16 * kElems;
constexpr double kNoTime = 1e-12;

TEST(SwappedAdamWInTime, HidesTheCopiesOfABatchButTheFirstInAndTheLastOut) {
  const nn::BatchesByMemory all{0.8};
  EXPECT_EQ(swapped_step_ns(4, all, 1, 1 << 30), kIn + 4 * kUpdate + kOut);
  EXPECT_EQ(swapped_step_ns(4, all, kNoTime, 1 << 30), 4 * kUpdate);
  // A slow link: the copies out are the step, but for the first in and the first update.
  EXPECT_EQ(swapped_step_ns(4, all, 10, 1 << 30), 10 * kIn + kUpdate + 4 * 10 * kOut);
}

// Each parameter is a batch of its own, which begins to come when the one before has left.
TEST(SwappedAdamWInTime, ExposesEveryCopyWhereABatchIsOneParameter) {
  // Two segments of 2 MiB hold values and gradients, and the moments of a batch; 32 KiB are allocated before a step.
  const std::int64_t capacity = 4 << 20;
  const double one = 8192.0 / static_cast<double>(capacity - 8 * 4096) * 1.5;
  EXPECT_EQ(swapped_step_ns(4, nn::BatchesByMemory{one}, 1, capacity), 4 * (kIn + kUpdate + kOut));
  EXPECT_EQ(swapped_step_ns(4, nn::BatchesByMemory{one}, 10, capacity), 4 * (10 * kIn + kUpdate + 10 * kOut));
}

TEST(SwappedAdamWInTime, SlicesHideAllButTheFirstInAndTheLastOut) {
  const nn::SlicesByCount slices{4};  // of one parameter: a quarter each
  EXPECT_EQ(swapped_step_ns(1, slices, 1, 1 << 30), (kIn + 4 * kUpdate + kOut) / 4);
  EXPECT_EQ(swapped_step_ns(1, slices, kNoTime, 1 << 30), kUpdate);
}

// Slower copies out than updates: a slice waits for the one before it to leave, whose successor is updated meanwhile.
TEST(SwappedAdamWInTime, SlicesOverASlowLinkTakeTheCopiesOut) {
  const nn::SlicesByCount slices{4};
  EXPECT_EQ(swapped_step_ns(1, slices, 10, 1 << 30), (10 * kIn + kUpdate + 4 * 10 * kOut) / 4);
}

// --- Offload

constexpr std::int64_t C = 30, D = 20, kGroups = 4;
constexpr std::int64_t kShardElems = kToyWidth * kToyWidth / 2;

virtual_time::HardwareProfile offload_profile(std::int64_t update_ns) {
  virtual_time::HardwareProfile profile = toy_profile(C, 1e-9);
  profile.host_link.h2d_pinned_bytes_per_s = 1e30;
  profile.host_link.d2h_pinned_bytes_per_s = 1e9 * 4 * kShardElems / D;
  profile.host.memory_bandwidth_bytes_per_s = 1e9 * 28 * kShardElems / static_cast<double>(update_ns);
  profile.host.flops_per_s = 1e30;
  return profile;
}

enum class Norm : std::uint8_t { kNone, kBefore };

struct Offloaded {
  bool wait_in_backward = true;
  Norm norm = Norm::kNone;
  bool sgd = false;
};

// The second step: forward, backward, the norm, the optimizer.
device::Recording offloaded_step(const Offloaded& step) {
  RankContext context(0, 2);
  const RankScope scope(context);
  device::Device& device = device::Device::install(context, {.dry_run = true});
  const auto world = comm::make_simulated_world(0, 2);
  sharding::FullyShardOptions options = sharded_over(*world, 2);
  options.cpu_offload = sharding::CpuOffloadPolicy{.pin_memory = true, .wait_in_backward = step.wait_in_backward};
  auto chain = std::make_shared<ToyChain>(kToyWidth, 3);
  wrap_chain(*chain, options);
  sharding::materialize_shards(*chain);
  std::unique_ptr<nn::Optimizer> optimizer = std::make_unique<nn::AdamW>(chain->parameters(), nn::AdamWOptions{});
  if (step.sgd) optimizer = std::make_unique<nn::Sgd>(nn::make_parameter_groups(*chain), nn::SgdOptions{});
  std::optional<device::Recorder> recorder;
  for (int i = 0; i < 2; ++i) {
    if (i == 1) recorder.emplace(device);
    device.log().add_phase("forward");
    const Tensor loss = ops::mean((*chain)(toy_input(0, kToyRows, kToyWidth)));
    device.log().add_phase("backward");
    autograd::backward(loss);
    device.log().add_phase("optimizer");
    if (step.norm == Norm::kBefore) sharding::grad_norm(*chain);
    optimizer->step();
    optimizer->zero_grad();
    device.log().add_phase("end");
  }
  return recorder->recording();
}

std::int64_t step_ns(const device::Recording& recording, std::int64_t update_ns) {
  const virtual_time::TimeModel model(offload_profile(update_ns));
  const virtual_time::RankRecording rank{0, &recording};
  return virtual_time::resolve({&rank, 1}, model).end_ns;
}

// Forward 4 C; the gradients of the blocks land at 6 C + D, 8 C + D and 10 C + D, the root's at 11 C + D.
constexpr std::int64_t kLast = 11 * C + D;

TEST(OffloadedAdamWInTime, BeginsAfterTheLastGradientWhereBackwardWaits) {
  const device::Recording recording = offloaded_step({});
  for (const std::int64_t update : {10, 45, 100}) EXPECT_EQ(step_ns(recording, update), kLast + kGroups * update);
}

TEST(OffloadedAdamWInTime, HidesTheUpdatesOfAllGroupsButTheLastWhereEachIsQuick) {
  const device::Recording recording = offloaded_step({.wait_in_backward = false});
  for (const std::int64_t update : {10, 30}) EXPECT_EQ(step_ns(recording, update), kLast + update);
}

TEST(OffloadedAdamWInTime, BeginsWithTheFirstGradientAndGoesOnWithoutAGapWhereEachIsSlow) {
  const device::Recording recording = offloaded_step({.wait_in_backward = false});
  for (const std::int64_t update : {60, 100}) EXPECT_EQ(step_ns(recording, update), 6 * C + D + kGroups * update);
  // Between: the third begins when it lands, the fourth after it.
  EXPECT_EQ(step_ns(recording, 45), 10 * C + D + 2 * 45);
}

TEST(OffloadedAdamWInTime, SumsTheNormGroupByGroupWhereTheUpdateNeedsIt) {
  constexpr std::int64_t kUpdate = 70, kNorm = kUpdate / 7;  // a seventh of the bytes
  EXPECT_EQ(step_ns(offloaded_step({.norm = Norm::kBefore}), kUpdate), kLast + kGroups * (kNorm + kUpdate));
  EXPECT_EQ(step_ns(offloaded_step({.wait_in_backward = false, .norm = Norm::kBefore}), kUpdate),
            kLast + kNorm + kGroups * kUpdate);
}

TEST(OffloadedSgdInTime, HidesItsUpdatesToo) {
  constexpr std::int64_t kUpdate = 28, kSgd = 3 * kUpdate / 7;  // 12 bytes an element of 28
  EXPECT_EQ(step_ns(offloaded_step({.sgd = true}), kUpdate), kLast + kGroups * kSgd);
  EXPECT_EQ(step_ns(offloaded_step({.wait_in_backward = false, .sgd = true}), kUpdate), kLast + kSgd);
}

}  // namespace
}  // namespace loom::test
