// Promise: a trainer whose optimizer works on the host, or whose moments are swapped, computes what one on the device
//          computes, bit for bit, in whatever order gradients are used; optimizer state goes from one to the other.
// World:   2 ranks as threads; a model that learns token -> (3 token + 1) mod 8; 2 micro-batches a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "sharding/full_parameters.h"
#include "tests/support/issued.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;

struct Steps {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::vector<float>> weights;

  bool operator==(const Steps&) const = default;
};

class HostOptimizer : public TinyTrainers {
 protected:
  void offload(bool pinned) {
    arguments.parallel.fsdp2_config_path = test::write_file(
        test::fresh_folder() / "fsdp2.yaml",
        fmt::format("sharding_size: auto\nsub_modules_to_wrap: [embed, head]\noffload_to_cpu: true\npin_memory: {}\n",
                    pinned));
  }

  // Of both ranks.
  std::vector<Steps> run(int steps = 4) {
    std::vector<Steps> found(kRanks);
    on_each_rank([&](int rank, Trainer& trainer) {
      Steps& own = found[static_cast<std::size_t>(rank)];
      for (int step = 0; step < steps; ++step) take_step(trainer, own);
      take_weights(trainer, own);
    });
    return found;
  }

  static void take_step(Trainer& trainer, Steps& own) {
    const StepMetrics metrics = trainer.step();
    own.losses.push_back(metrics.loss);
    own.norms.push_back(metrics.grad_norm);
  }
  static void take_weights(Trainer& trainer, Steps& own) {
    for (const Tensor& parameter : trainer.model().parameters()) own.weights.push_back(parameter.to_vector<float>());
  }
};

TEST_F(HostOptimizer, HasTheBitsOfTheDevice) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdam, OptimizerKind::kSgd}) {
    arguments.optimizer.kind = optimizer;
    for (const double clip : {0.0, 0.5}) {
      arguments.optimizer.clip_grad = clip;
      for (const bool check : {true, false}) {
        arguments.optimizer.check_for_nan_in_loss_and_grad = check;
        arguments.parallel.fsdp2_config_path = test::write_file(
            test::fresh_folder() / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\n");
        const std::vector<Steps> on_device = run();
        EXPECT_LT(on_device[0].losses.back(), on_device[0].losses.front());
        for (const bool pinned : {true, false}) {
          offload(pinned);
          for (const bool overlap : {true, false}) {
            for (const auto executor : {device::ExecutorKind::kInline, device::ExecutorKind::kThreaded}) {
              arguments.optimizer.overlap_cpu_optimizer = overlap;
              arguments.launch.device_executor = executor;
              EXPECT_EQ(run(), on_device) << clip << check << pinned << overlap;
            }
          }
        }
      }
    }
  }
}

TEST_F(HostOptimizer, SwappedMomentsHaveTheBitsOfAdam) {
  const std::vector<Steps> plain = run();
  arguments.optimizer.swap_optimizer = true;
  for (const int times : {1, 3, 16}) {
    arguments.optimizer.swap_optimizer_times = times;
    EXPECT_EQ(run(), plain) << times;
  }
  arguments.optimizer.swap_optimizer = false;
  arguments.optimizer.kind = OptimizerKind::kAdamSwap;
  for (const double fraction : {0.1, 0.9}) {
    arguments.optimizer.mem_fraction_static = fraction;
    EXPECT_EQ(run(), plain) << fraction;
  }
}

TEST_F(HostOptimizer, StateGoesFromSwappedToPlainAndBack) {
  const std::vector<Steps> whole = run();
  using Kinds = std::pair<OptimizerKind, OptimizerKind>;
  for (const auto& [first, second] :
       {Kinds{OptimizerKind::kAdam, OptimizerKind::kAdamSwap}, Kinds{OptimizerKind::kAdamSwap, OptimizerKind::kAdam}}) {
    std::vector<Steps> parts(kRanks);
    std::vector<std::tuple<nn::StateDict, nn::OptimizerState, TrainState>> saved(kRanks);
    arguments.optimizer.kind = first;
    on_each_rank([&](int rank, Trainer& trainer) {
      for (int step = 0; step < 2; ++step) take_step(trainer, parts[static_cast<std::size_t>(rank)]);
      saved[static_cast<std::size_t>(rank)] = {nn::host_copies(sharding::local_state_dict(trainer.sharded_module())),
                                               nn::host_copies(trainer.optimizer().state_dict()), trainer.state()};
    });
    arguments.optimizer.kind = second;
    on_each_rank([&](int rank, Trainer& trainer) {
      const auto& [model, optimizer, state] = saved[static_cast<std::size_t>(rank)];
      nn::load_state_dict(trainer.sharded_module(), model);
      trainer.optimizer().load_state_dict(optimizer);
      trainer.set_state(state);
      for (int step = 2; step < 4; ++step) take_step(trainer, parts[static_cast<std::size_t>(rank)]);
      take_weights(trainer, parts[static_cast<std::size_t>(rank)]);
    });
    EXPECT_EQ(parts, whole);
  }
}

// The CPU's work of a step of one micro-batch on rank 0: the embedding's gradient lands last.
TEST_F(HostOptimizer, UsesGradientsAsTheyLandWhereThatIsAsked) {
  offload(true);
  arguments.schedule.global_batch_size = kRanks * arguments.schedule.micro_batch_size;
  const auto work_of_the_host = [&] {
    std::vector<std::string> names;
    on_each_rank([&](int rank, Trainer& trainer) {
      trainer.step();
      const device::Recorder recorder(device::Device::current());
      trainer.step();
      if (rank != 0) return;
      const device::Recording recording = recorder.recording();
      bool in_optimizer = false;
      for (const device::Entry& entry : recording.entries) {
        if (entry.kind == device::EntryKind::kPhase) in_optimizer = recording.text(entry.name) == "optimizer";
        if (!in_optimizer) continue;
        if (entry.kind == device::EntryKind::kHostWork) names.push_back(recording.text(entry.name));
        if (entry.kind == device::EntryKind::kHostWait) names.push_back("wait");
      }
    });
    return names;
  };
  const std::vector<std::string> norms(4, "grad_norm"), clips(4, "grad_clip"), updates(4, "adamw");
  std::vector<std::string> waited = norms;
  waited.insert(waited.end(), clips.begin(), clips.end());
  waited.insert(waited.end(), updates.begin(), updates.end());
  arguments.optimizer.overlap_cpu_optimizer = false;
  EXPECT_EQ(work_of_the_host(), waited);
  // A wait before each norm, and none after: all is there.
  arguments.optimizer.overlap_cpu_optimizer = true;
  std::vector<std::string> overlapped;
  for (int i = 0; i < 4; ++i) overlapped.insert(overlapped.end(), {"wait", "grad_norm"});
  overlapped.insert(overlapped.end(), clips.begin(), clips.end());
  overlapped.insert(overlapped.end(), updates.begin(), updates.end());
  EXPECT_EQ(work_of_the_host(), overlapped);
  // Nothing needs the norm: the update comes first.
  arguments.optimizer.clip_grad = 0;
  arguments.optimizer.check_for_nan_in_loss_and_grad = false;
  EXPECT_THAT(work_of_the_host(), ElementsAre("wait", "adamw", "wait", "adamw", "wait", "adamw", "wait", "adamw",
                                              "grad_norm", "grad_norm", "grad_norm", "grad_norm"));
  arguments.optimizer.overlap_cpu_optimizer.reset();
  arguments.kernels.set = KernelSet::kPytorch;  // as PyTorch: eight passes, after backward has waited
  std::vector<std::string> passes = norms;
  for (const char* pass : {"foreach_mul", "foreach_lerp", "foreach_mul", "foreach_addcmul", "foreach_sqrt",
                           "foreach_div", "foreach_add", "foreach_addcdiv"}) {
    passes.insert(passes.end(), 4, pass);
  }
  EXPECT_EQ(work_of_the_host(), passes);
}

TEST_F(HostOptimizer, SwappedMomentsOfOffloadedParametersAreRefused) {
  offload(true);
  arguments.optimizer.kind = OptimizerKind::kAdamSwap;
  EXPECT_THAT(test::message_of<ConfigError>([&] { run(1); }),
              ::testing::HasSubstr(
                  "AdamW with swapped moments: parameter 'embed.weight' is in host memory (offload_to_cpu), and its "
                  "moments are there already; set offload_to_cpu: false, or use --optimizer adam without "
                  "--swap-optimizer"));
}

}  // namespace
}  // namespace loom::train
