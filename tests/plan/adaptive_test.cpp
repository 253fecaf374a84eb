// Promise: adaptive recompute keeps everything where it fits, says the least that a step needs where nothing fits, and
//          in between chooses a step whose peak is within the budget, at a cost that does not rise with it.
// World:   the quick start's model on two devices.
#include "engine/plan/adaptive.h"

#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr const char* kWrapped =
    "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n";

struct Job {
  explicit Job(const std::string& yaml = kWrapped) {
    a = arguments();
    a.parallel.fsdp2_config_path = test::write_file(test::fresh_folder() / "fsdp2.yaml", yaml);
    calls = cli::hub_callbacks(a);
  }
  AdaptiveChoice choose(std::int64_t mib) {
    a.memory.device_memory_mib = mib;
    return choose_adaptive(a, calls, device);
  }
  StepEstimate in_mode(KeepMode mode, const std::vector<AdaptedModule>& modules) {
    std::vector<AdaptedModule> all = modules;
    for (AdaptedModule& module : all) module.mode = mode;
    a.memory.device_memory_mib = 0;
    return estimate_step(a, calls, device, Capacity::kLifted,
                         [&](sharding::Fsdp2Config& config) { apply_modes(all, config); });
  }
  train::TrainSections a;
  train::PretrainCallbacks calls;
  virtual_time::HardwareProfile device = profile();
};

TEST(Adaptive, KeepsEverythingWhereItFits) {
  const AdaptiveChoice choice = Job().choose(1 << 20);
  EXPECT_GT(choice.modules.size(), 3U);
  EXPECT_THAT(choice.modules, Each(Field(&AdaptedModule::mode, KeepMode::kKeep)));
  EXPECT_EQ(choice.chosen.time.step_ns, choice.all_kept.time.step_ns);
}

// From what recomputes everything to what keeps everything, in steps: each choice fits, none costs more than one for
// less memory, and mixtures appear.
TEST(Adaptive, FitsEveryBudgetAtACostThatDoesNotRise) {
  Job job;
  const AdaptiveChoice kept = job.choose(1 << 20);
  const std::int64_t most = kept.chosen.memory.peak_reserved_bytes / kMiB + 1;
  const std::int64_t least = job.in_mode(KeepMode::kRecompute, kept.modules).memory.peak_reserved_bytes / kMiB + 1;
  ASSERT_LT(least + 8, most);
  std::int64_t last_ns = std::numeric_limits<std::int64_t>::max();
  bool mixed = false;
  for (std::int64_t mib = least; mib <= most + 2; mib += 2) {
    const AdaptiveChoice choice = job.choose(mib);
    EXPECT_LE(choice.chosen.memory.peak_reserved_bytes, mib * kMiB);
    std::int64_t added = 0;
    int modes = 0;
    for (const AdaptedClass& of : choice.classes) {
      for (std::size_t m = 0; m < kKeepModes; ++m) {
        added += of.counts[m] * of.costs[m].added_ns;
        modes += of.counts[m] > 0;
      }
    }
    EXPECT_LE(added, last_ns) << mib;
    last_ns = added;
    mixed = mixed || modes > 1;
    // What it tells is what the same configuration gives when it is planned.
    job.a.memory.device_memory_mib = 0;
    const StepEstimate again =
        estimate_step(job.a, job.calls, job.device, Capacity::kLifted,
                      [&](sharding::Fsdp2Config& config) { apply_modes(choice.modules, config); });
    EXPECT_EQ(again.memory.peak_allocated_bytes, choice.chosen.memory.peak_allocated_bytes);
  }
  EXPECT_EQ(last_ns, 0) << "all of it fits the last budget";
  EXPECT_TRUE(mixed);
}

TEST(Adaptive, IsTheSameEveryTime) {
  Job job;
  const std::int64_t mib =
      job.in_mode(KeepMode::kRecompute, job.choose(1 << 20).modules).memory.peak_reserved_bytes / kMiB + 3;
  EXPECT_EQ(to_text(job.choose(mib)), to_text(job.choose(mib)));
}

TEST(Adaptive, SaysTheLeastThatAStepNeeds) {
  Job job;
  try {
    job.choose(8);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(
        error.what(),
        ContainsRegex("adaptive recompute: the device has 8\\.0 MiB, and with every module in its smallest mode "
                      "a step reserves [0-9]+\\.[0-9] MiB; give --adaptive-recompute-device-size at least that"));
  }
}

TEST(Adaptive, NeedsModulesToChooseFor) {
  EXPECT_THAT([] { Job("sharding_size: auto\nsub_modules_to_wrap: [lm_head]\n").choose(100); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr(
                  "fsdp2.yaml: --adaptive-recompute-device-swap finds no module to choose for; list the layers in "
                  "sub_modules_to_wrap (\"model.layers.{*}\") or in recompute_modules")));
}

// The table has the modules of each mode in the order of forward.
TEST(Adaptive, ShowsWhatItChose) {
  Job job;
  const AdaptiveChoice kept = job.choose(1 << 20);
  EXPECT_THAT(to_text(kept),
              ContainsRegex("^adaptive recompute for 1024\\.00 GiB\n  mode +modules +saves [KM]iB +costs (us|ms)"));
  EXPECT_THAT(to_text(kept),
              ContainsRegex("\n  keep +[0-9]+ +0\\.00 +0\\.00  model\\.layers\\.0 to model\\.layers\\."));
  EXPECT_THAT(to_text(kept), ContainsRegex("\n  peak allocated [0-9.]+ MiB instead of [0-9.]+ MiB, step "));
}

}  // namespace
}  // namespace loom::plan
