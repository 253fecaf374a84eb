// A training step of the toy chain (tests/support/toy_models.h) of which only products and collectives take time.
//
// Letters  L blocks under a root with a weight of its own; C ns for each product (a block: one forward, two backward;
//          the root: one and one, its input needs no gradient); G ns for each gather and each reduction.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/comm/simulated/simulated.h"
#include "engine/device/recorder.h"
#include "engine/virtual_time/breakdown.h"
#include "engine/virtual_time/resolve.h"
#include "offload/activation_swap.h"
#include "recompute/checkpoint.h"
#include "tests/support/tiny_profile.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::test {

struct ToyStep {
  int blocks = 3;
  int ranks = 2;
  int shard_size = 2;
  sharding::ReshardAfterForward reshard_after_forward = true;
  int forward_prefetch = 0;
  int backward_prefetch = 0;
  enum class Recompute { kNone, kReentrant, kRecorded } recompute = Recompute::kNone;
  bool swap = false;  // the blocks' inputs leave for the host, pinned; the last one's stays
};

constexpr std::int64_t kToyWidth = 16;
constexpr std::int64_t kToyRows = 8;

// C and G in ns, on nodes of two devices.
inline virtual_time::HardwareProfile toy_profile(double product_ns, double collective_ns) {
  virtual_time::HardwareProfile profile = tiny_profile();
  profile.memory.bandwidth_bytes_per_s = 1e30;
  profile.vector.flops_per_s = 1e30;
  profile.matrix.peak_flops_per_s[DType::kF32] = 2e9 * kToyRows * kToyWidth * kToyWidth / product_ns;
  // A ring of two passes half of the tensor.
  for (virtual_time::LinkLevel& level : profile.links.levels) {
    level.bandwidth_bytes_per_s = 1e9 * (4 * kToyWidth * kToyWidth / 2) / collective_ns;
  }
  return profile;
}

inline std::shared_ptr<ToyChain> toy_model(comm::World& world, const ToyStep& step) {
  sharding::FullyShardOptions options = sharded_over(world, step.shard_size);
  options.reshard_after_forward = step.reshard_after_forward;
  auto chain = std::make_shared<ToyChain>(kToyWidth, step.blocks);
  std::vector<nn::Module*> blocks;
  for (std::size_t i = 0; i < chain->layers.size(); ++i) blocks.push_back(&chain->layers[i]);
  if (step.recompute != ToyStep::Recompute::kNone) {
    for (nn::Module* block : blocks) {
      recompute::checkpoint(*block,
                            {.path = "block", .use_reentrant = step.recompute == ToyStep::Recompute::kReentrant});
    }
  }
  if (step.swap) {
    std::vector<offload::SwapBlock> swapped;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      swapped.push_back({.path = "layers." + std::to_string(i), .module = blocks[i]});
    }
    offload::swap_activations(swapped, {.pin_memory = true});
  }
  wrap_chain(*chain, options);
  const auto ahead = [&](std::size_t i, int count) {
    const auto begin = blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    return std::vector<nn::Module*>(begin, begin + std::min<std::ptrdiff_t>(count, blocks.end() - begin));
  };
  for (std::size_t i = 0; step.forward_prefetch > 0 && i + 1 < blocks.size(); ++i) {
    sharding::set_modules_to_forward_prefetch(*blocks[i], ahead(i, step.forward_prefetch));
  }
  std::reverse(blocks.begin(), blocks.end());
  for (std::size_t i = 0; step.backward_prefetch > 0 && i + 1 < blocks.size(); ++i) {
    sharding::set_modules_to_backward_prefetch(*blocks[i], ahead(i, step.backward_prefetch));
  }
  sharding::materialize_shards(*chain);
  return chain;
}

// Records one step, the second of this rank.
inline device::Recording record_step(device::Device& device, ToyChain& chain) {
  std::optional<device::Recorder> recorder;
  for (int step = 0; step < 2; ++step) {
    if (step == 1) {
      device.synchronize();
      recorder.emplace(device);
    }
    device.log().add_phase("forward");
    const Tensor loss = ops::mean(chain(toy_input(0, kToyRows, kToyWidth)));
    device.log().add_phase("backward");
    autograd::backward(loss);
    device.log().add_phase("end");
    for (auto& [path, parameter] : chain.named_parameters()) parameter.set_grad({});
  }
  return recorder->recording();
}

// A dry run of rank 0 and what was recorded of it.
struct PlannedStep {
  explicit PlannedStep(const ToyStep& step)
      : context(0, step.ranks),
        scope(context),
        device(&device::Device::install(context, {.dry_run = true})),
        world(comm::make_simulated_world(0, step.ranks)),
        chain(toy_model(*world, step)),
        recording(record_step(*device, *chain)) {}

  virtual_time::RankTimes times(const virtual_time::HardwareProfile& profile,
                                virtual_time::HostCosts costs = virtual_time::HostCosts::kCounted) const {
    const virtual_time::TimeModel model(profile);
    const virtual_time::RankRecording rank{0, &recording};
    return virtual_time::resolve({&rank, 1}, model, costs).ranks.front();
  }

  RankContext context;
  RankScope scope;
  device::Device* device;
  std::unique_ptr<comm::World> world;
  std::shared_ptr<ToyChain> chain;
  device::Recording recording;
};

}  // namespace loom::test
