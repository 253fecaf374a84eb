// Promise: searches find the best that fits among what the file and the command line leave open, and say what they
//          cannot search.
// World:   the quick start's model on devices of little memory.
#include "engine/plan/plan_search.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/plan/plan_output.h"
#include "sharding/config/fsdp2_keys.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::HasSubstr;

TEST(PlanSearch, FindsTheLargestMicroBatchThatFits) {
  const train::TrainSections a = arguments();
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile small = profile(400 * kMiB);
  const auto fit = PlanSearch(a, calls, small).largest_micro_batch();
  train::TrainSections larger = a;
  larger.schedule.micro_batch_size = fit.choice.micro_batch;
  larger.schedule.global_batch_size = kRanks * larger.schedule.micro_batch_size;
  EXPECT_NO_THROW(estimate_step(larger, calls, small));
  ++larger.schedule.micro_batch_size;
  larger.schedule.global_batch_size = kRanks * larger.schedule.micro_batch_size;
  EXPECT_THROW(estimate_step(larger, calls, small), OutOfMemoryError);
}

TEST(PlanSearch, FindsTheSmallestWorldThatFits) {
  train::TrainSections a = arguments();
  a.schedule.micro_batch_size = 1;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile small = profile(160 * kMiB);
  const auto fit = PlanSearch(a, calls, small).smallest_world();
  EXPECT_GT(fit.choice.world, 1);
  train::TrainSections smaller = a;
  smaller.launch.ranks = fit.choice.world / 2;
  smaller.schedule.global_batch_size = smaller.launch.ranks;
  EXPECT_THROW(estimate_step(smaller, calls, small), OutOfMemoryError);
}

TEST(PlanSearch, SweepsWhatFitsTheFastestPerTokenFirst) {
  train::TrainSections a = arguments();
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const Sweep found = PlanSearch(a, calls, profile(192 * kMiB)).sweep();
  const std::vector<Candidate>& sweep = found.fitting;
  ASSERT_GT(sweep.size(), 4u);
  for (std::size_t i = 0; i + 1 < sweep.size(); ++i) {
    EXPECT_GE(sweep[i].plan.throughput.tokens_per_s_per_device, sweep[i + 1].plan.throughput.tokens_per_s_per_device);
    EXPECT_LE(sweep[i].plan.memory.peak_allocated_bytes, 192 * kMiB);
  }
  const nlohmann::ordered_json json = to_json(found);
  EXPECT_EQ(json["sweep"].size(), sweep.size());
  EXPECT_EQ(json["sweep"][0]["change"], sweep[0].change);
}

TEST(PlanSearch, NeedsAFileToSweep) {
  train::TrainSections a = arguments();
  a.parallel.use_torch_fsdp2 = false;
  a.launch.ranks = 1;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile large = profile();
  EXPECT_THAT([&] { PlanSearch(a, calls, large).sweep(); },
              ::testing::ThrowsMessage<ConfigError>(
                  HasSubstr("--sweep changes keys of a file; give --use-torch-fsdp2 --fsdp2-config-path FILE")));
}

constexpr const char* kWrapped = "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n";

// One sequence a micro-batch, sharded by `yaml`.
train::TrainSections sharded_by(const std::string& yaml) {
  train::TrainSections a = arguments();
  a.parallel.fsdp2_config_path = test::write_file(test::fresh_folder() / "fsdp2.yaml", yaml + kWrapped);
  a.schedule.micro_batch_size = a.launch.ranks = a.schedule.global_batch_size = 1;
  return a;
}

bool fits(train::TrainSections a, int world, const virtual_time::HardwareProfile& device) {
  a.launch.ranks = world;
  a.schedule.global_batch_size = world * a.schedule.micro_batch_size;
  try {
    estimate_step(a, cli::hub_callbacks(a), device);
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

TEST(SmallestWorld, IsMinimalInsideANodeToo) {
  const train::TrainSections a = sharded_by("sharding_size: auto\n");
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  std::set<int> found;
  for (const std::int64_t memory : {126, 130, 134, 142, 158}) {
    const virtual_time::HardwareProfile small = profile(memory * kMiB);
    const int world = PlanSearch(a, calls, small).smallest_world().choice.world;
    for (int smaller = 1; smaller < std::min(world, 8); ++smaller) EXPECT_FALSE(fits(a, smaller, small)) << memory;
    for (int smaller = 8; smaller < world; smaller += 8) EXPECT_FALSE(fits(a, smaller, small)) << memory;
    EXPECT_TRUE(fits(a, world, small)) << memory;
    found.insert(world);
  }
  EXPECT_GE(found.size(), 3u) << "these memories tell the worlds apart";
}

TEST(SmallestWorld, IsOneThatTheFileAllows) {
  const auto smallest = [](const std::string& yaml, std::optional<int> global_batch = {}) {
    train::TrainSections a = sharded_by(yaml);
    if (global_batch) a.schedule.global_batch_size = *global_batch;
    const train::PretrainCallbacks calls = cli::hub_callbacks(a);
    const virtual_time::HardwareProfile device = profile();
    return PlanSearch(a, calls, device, {.global_batch_size = global_batch}).smallest_world();
  };
  EXPECT_EQ(smallest("sharding_size: 3\n").choice.world, 3);
  EXPECT_EQ(smallest("sharding_size: 12\n").choice.world, 24) << "whole nodes of 8";
  EXPECT_EQ(smallest("sharding_size: auto\nreshard_after_forward: 5\n").choice.world, 5);
  const auto shared = smallest("sharding_size: 2\n", 6);
  EXPECT_EQ(shared.choice.world, 2);
  EXPECT_EQ(shared.plan.micro_batches, 3) << "the global batch is kept";
  EXPECT_THAT([&] { smallest("sharding_size: 4\n", 6); },
              ::testing::ThrowsMessage<ConfigError>(
                  HasSubstr("no world of up to 1048576 devices shares out --global-batch-size 6 in micro-batches of 1 "
                            "and is divided by the sizes in ")));
}

TEST(LargestMicroBatch, SharesOutTheGlobalBatch) {
  train::TrainSections a = arguments();
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = kRanks * 30;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile small = profile(400 * kMiB);
  const int free = PlanSearch(a, calls, small).largest_micro_batch().choice.micro_batch;
  const auto kept =
      PlanSearch(a, calls, small, {.global_batch_size = a.schedule.global_batch_size}).largest_micro_batch();
  EXPECT_EQ(30 % kept.choice.micro_batch, 0);
  EXPECT_LT(kept.choice.micro_batch, free);
  EXPECT_EQ(kept.plan.micro_batches * kept.plan.micro_batch, 30);
  EXPECT_THAT([&] { PlanSearch(a, calls, small, {.global_batch_size = 6}).largest_micro_batch(); },
              ::testing::ThrowsMessage<ConfigError>(
                  "--global-batch-size is 6, which 4 devices cannot share out; use a multiple of 4"));
}

// The step time per token of every micro-batch of the winner's file, tried by hand.
TEST(Sweep, IsNotBeatenByAMicroBatchTriedByHand) {
  const train::TrainSections a = arguments();
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile small = profile(208 * kMiB);
  const std::vector<Candidate> sweep = PlanSearch(a, calls, small).sweep().fitting;
  ASSERT_FALSE(sweep.empty());
  const PlanChoice& best = sweep.front().choice;
  const Degrees degrees = degrees_of(best);
  std::vector<int> fitting;
  for (int size = 1;; ++size) {
    train::TrainSections by_hand = a;
    by_hand.schedule.micro_batch_size = size;
    by_hand.objective.loss_chunk_size = best.loss_chunk_size;
    by_hand.schedule.global_batch_size = degrees.dp_shard * degrees.dp_replicate * size;
    try {
      const StepEstimate plan = estimate_step(by_hand, calls, small, Capacity::kOfTheProfile,
                                              [&](sharding::Fsdp2Config& config) { config = best.config; });
      EXPECT_LE(plan.throughput.tokens_per_s_per_device, sweep.front().plan.throughput.tokens_per_s_per_device) << size;
      fitting.push_back(size);
    } catch (const OutOfMemoryError&) {
      break;
    }
  }
  ASSERT_GT(fitting.size(), 4u);
  for (const int size : fitting) {
    EXPECT_TRUE(std::ranges::any_of(sweep, [&](const auto& candidate) {
      return candidate.choice.micro_batch == size && sharding::same_values(candidate.choice.config, best.config);
    })) << size;
  }
}

TEST(Sweep, KeepsTheBatchesThatAreGiven) {
  train::TrainSections a = arguments();
  a.schedule.micro_batch_size = 3;
  a.schedule.global_batch_size = kRanks * 12;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile device = profile(208 * kMiB);
  std::set<std::int64_t> micro_batches;
  for (const auto& c :
       PlanSearch(a, calls, device, {.global_batch_size = a.schedule.global_batch_size}).sweep().fitting) {
    const Degrees degrees = degrees_of(c.choice);
    EXPECT_EQ(c.plan.micro_batch * c.plan.micro_batches * degrees.dp_shard * degrees.dp_replicate, kRanks * 12);
    micro_batches.insert(c.plan.micro_batch);
  }
  EXPECT_THAT(micro_batches, ::testing::IsSupersetOf({12, 24})) << "the fastest";
  std::set<std::int64_t> fixed;
  for (const auto& c : PlanSearch(a, calls, device, {.micro_batch_size = 3}).sweep().fitting) {
    fixed.insert(c.plan.micro_batch);
  }
  EXPECT_THAT(fixed, ::testing::ElementsAre(3));
}

}  // namespace
}  // namespace loom::plan
