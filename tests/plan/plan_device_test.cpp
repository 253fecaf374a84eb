// Promise: a planned step is one that its device could do: gathers begin when their memory is free, what is in flight
//          is in the memory, the allocator's cache is emptied where it must be and that is said, experts' products are
//          products.
// World:   rank 0 of 64 devices; models of configs/models.
#include <gmock/gmock.h>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/planner.h"
#include "sharding/marks.h"
#include "sharding/memory.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using device::Entry;
using device::MarkKind;
using ::testing::HasSubstr;

// --- Gathers ahead

train::TrainSections llama_70b(int prefetch, train::KernelSet kernels, std::int64_t seq_length) {
  train::TrainSections a;
  a.model.model_config = kSource / "configs/models/llama3_70b.yaml";
  a.parallel.use_torch_fsdp2 = true;
  a.parallel.fsdp2_config_path = test::write_file(
      test::fresh_folder() / "fsdp2.yaml",
      fmt::format("sharding_size: auto\nparam_dtype: bf16\nreduce_dtype: fp32\nreshard_after_forward: true\n"
                  "num_to_forward_prefetch: {}\nnum_to_backward_prefetch: {}\n"
                  "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{{*}}\", lm_head]\n"
                  "recompute_modules: [\"model.layers.{{*}}\"]\nuse_reentrant: false\n",
                  prefetch, prefetch));
  a.data.seq_length = static_cast<int>(seq_length);
  a.launch.ranks = a.schedule.global_batch_size = 64;
  a.kernels.set = kernels;
  a.kernels.fused = kernels == train::KernelSet::kFast ? nn::KernelOptions::fast() : nn::KernelOptions::pytorch();
  return a;
}

// A layer on the device, from the begin of its gather to the end of what computes with it.
struct Stay {
  std::int64_t begin_ns = 0;
  std::int64_t wanted_ns = 0;  // compute comes to it
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;
};

std::vector<Stay> stays_of_layers(const StepEstimate& plan) {
  const device::Recording& recording = plan.run().recording;
  std::map<std::int32_t, Stay> open;
  std::vector<Stay> stays;
  std::int64_t compute_ns = 0;  // when compute is done with what was issued so far
  recording.visit(
      [&, i = std::size_t{0}](const Entry& entry) mutable {
        const virtual_time::EntryTime& time = plan.run().times.entries[i++];
        if (entry.kind == device::EntryKind::kKernel) compute_ns = time.end;
        const bool layer = recording.text(entry.subject).starts_with("model.layers.");
        if (!layer || entry.cost.work != device::WorkKind::kAllGather) return;
        open[entry.subject] = {.begin_ns = time.start, .bytes = entry.bytes};
      },
      [&](const device::Mark& mark) {
        const auto stay = open.find(mark.subject);
        if (stay == open.end()) return;
        if (mark.kind == sharding::kGatheredMark) stay->second.wanted_ns = std::max(compute_ns, stay->second.begin_ns);
        if (mark.kind != sharding::kReshardMark) return;
        stay->second.end_ns = compute_ns;
        stays.push_back(stay->second);
        open.erase(stay);
      });
  return stays;
}

// The most that is on the device at one time, of the layers or of their bytes.
template <class Weight>
std::int64_t most_at_once(const std::vector<Stay>& stays, Weight weight) {
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;
  for (const Stay& stay : stays) {
    changes.emplace_back(stay.begin_ns, weight(stay));
    changes.emplace_back(stay.end_ns, -weight(stay));
  }
  std::ranges::sort(changes);  // at one time, what ends first
  std::int64_t now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

class Prefetch : public ::testing::TestWithParam<train::KernelSet> {};

TEST_P(Prefetch, IsAllThatIsInFlightAndStandsInTheMemory) {
  for (const int prefetch : {0, 1, 2}) {
    const train::TrainSections a = llama_70b(prefetch, GetParam(), 1024);
    const StepEstimate plan = estimate_step(a, cli::hub_callbacks(a), profile());
    const std::vector<Stay> stays = stays_of_layers(plan);
    ASSERT_EQ(stays.size(), 2u * 80u);
    // The layer that computes, and those ahead: backward gathers one ahead by itself. PyTorch's buffer makes room for
    // one more while a layer is copied out of it.
    const std::int64_t ahead = std::max(1, prefetch) + (GetParam() == train::KernelSet::kPytorch ? 1 : 0);
    EXPECT_LE(most_at_once(stays, [](const Stay&) { return 1; }), 1 + ahead) << prefetch;
    const device::MemoryPeaks peaks = device::peaks_of(plan.run().recording.memory);
    const auto of = [&](device::MemCategory c) { return peaks.by_category[c]; };
    EXPECT_LE(most_at_once(stays, [](const Stay& stay) { return stay.bytes; }),
              of(device::MemCategory::kParameter) + of(sharding::kGatherBuffer))
        << prefetch;
  }
}

TEST_P(Prefetch, MakesStepsOfDifferentMemory) {
  std::map<int, std::int64_t> bytes;
  for (const int prefetch : {1, 2, 3}) {
    const train::TrainSections a = llama_70b(prefetch, GetParam(), 1024);
    const StepEstimate plan = estimate_step(a, cli::hub_callbacks(a), profile());
    const device::MemoryPeaks peaks = device::peaks_of(plan.run().recording.memory);
    bytes[prefetch] = peaks.by_category[device::MemCategory::kParameter] + peaks.by_category[sharding::kGatherBuffer];
  }
  EXPECT_LT(bytes[1], bytes[2]);
  EXPECT_LT(bytes[2], bytes[3]);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Prefetch, ::testing::Values(train::KernelSet::kFast, train::KernelSet::kPytorch),
                         [](const auto& info) {
                           return std::string(info.param == train::KernelSet::kFast ? "fast" : "pytorch");
                         });

// A gather in place has nowhere to go but the memory of the group before it: without a prefetch it waits for that.
TEST(PrefetchInPlace, HidesTheGathersOfForward) {
  std::map<int, StepEstimate> plans;
  for (const int prefetch : {0, 1}) {
    const train::TrainSections a = llama_70b(prefetch, train::KernelSet::kFast, 4096);
    plans.emplace(prefetch, estimate_step(a, cli::hub_callbacks(a), profile()));
  }
  const auto forward_gathers_ns = plans.at(0).communication.front().time_ns / 2;
  const auto exposed_ns = [&](int prefetch) { return plans.at(prefetch).time.breakdown.exposed_comm_ns; };
  EXPECT_NEAR(static_cast<double>(exposed_ns(0) - exposed_ns(1)), static_cast<double>(forward_gathers_ns),
              0.1 * static_cast<double>(forward_gathers_ns));
}

// --- The cache

TEST(CacheFlushes, AreCountedAndNamed) {
  const train::TrainSections a = arguments();
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const StepEstimate free = estimate_step(a, calls, profile());
  EXPECT_EQ(free.memory.cache_flushes, 0);
  EXPECT_TRUE(free.memory.flushes.empty());
  EXPECT_EQ(to_json(free)["memory"]["flushes"], nlohmann::json::array());
  EXPECT_THAT(to_text(free), HasSubstr("\nfits: peak reserved "));
  EXPECT_THAT(to_text(free), ::testing::Not(HasSubstr("emptied its cache")));
  std::optional<StepEstimate> tight;
  for (std::int64_t memory = free.memory.peak_reserved_bytes; memory > free.memory.peak_allocated_bytes;
       memory -= 2 * kMiB) {
    try {
      const StepEstimate plan = estimate_step(a, calls, profile(memory));
      EXPECT_LE(plan.memory.peak_reserved_bytes, memory);
      if (plan.memory.cache_flushes > 0) tight = plan;
    } catch (const OutOfMemoryError&) {
      break;
    }
  }
  ASSERT_TRUE(tight) << "some memory between what is allocated and what is reserved must make the cache go";
  std::int64_t count = 0;
  const std::string text = to_text(*tight);
  EXPECT_THAT(text, HasSubstr("\nfits, with its cache emptied on the way: peak reserved "));
  EXPECT_THAT(text, HasSubstr("  the allocator emptied its cache "));
  for (const CacheFlush& flush : tight->memory.flushes) {
    count += flush.count;
    EXPECT_THAT(flush.phase, ::testing::AnyOf("forward", "backward", "optimizer"));
    EXPECT_THAT(text, HasSubstr(fmt::format("    {} x in {}", flush.count, flush.phase)));
  }
  EXPECT_EQ(count, tight->memory.cache_flushes);
  EXPECT_EQ(to_json(*tight)["memory"]["cache_flushes"], count);
  EXPECT_EQ(to_json(*tight)["memory"]["peak_reserved_bytes"], tight->memory.peak_reserved_bytes);
}

// --- What is trained

TEST(FrozenParameters, AreCounted) {
  std::string model = test::read_file(kSource / "examples/pretrain_vlm/model.yaml");
  model.replace(model.find("vision_config:\n"), 15, "vision_config:\n  freeze: true\n");
  train::TrainSections a = arguments("full_shard.yaml");
  const std::filesystem::path folder = test::fresh_folder();
  a.model.model_config = test::write_file(folder / "model.yaml", model);
  a.parallel.fsdp2_config_path = test::write_file(folder / "fsdp2.yaml",
                                                  "sharding_size: auto\n"
                                                  "sub_modules_to_wrap: [\"model.language_model.layers.{*}\"]\n");
  a.data.seq_length = 16;
  const StepEstimate plan = estimate_step(a, cli::hub_callbacks(a), profile());
  EXPECT_LT(plan.trained_parameters, plan.parameters);
  EXPECT_GT(plan.trained_parameters, 0);
  EXPECT_EQ(to_json(plan)["trained_parameters"], plan.trained_parameters);
  EXPECT_THAT(to_text(plan),
              HasSubstr(fmt::format("\n{} parameters are trained, {} are frozen\n", count_text(plan.trained_parameters),
                                    count_text(plan.parameters - plan.trained_parameters))));
}

// The file of a frozen base freezes nothing by itself: the plan says so.
TEST(FrozenParameters, AreNoneByAFileOfShardingAlone) {
  const train::TrainSections a = arguments("frozen_base.yaml");
  EXPECT_THAT(to_text(estimate_step(a, cli::hub_callbacks(a), profile())), HasSubstr("\nall parameters are trained\n"));
}

// --- Experts

StepEstimate plan_of_experts(int seq_length) {
  train::TrainSections a;
  a.model.model_config = kSource / "configs/models/qwen3_30b_a3b.yaml";
  a.parallel.use_torch_fsdp2 = true;
  a.parallel.fsdp2_config_path = kSource / "configs/fsdp2/full_shard.yaml";
  a.data.seq_length = seq_length;
  a.launch.ranks = a.schedule.global_batch_size = 64;
  return estimate_step(a, cli::hub_callbacks(a), profile());
}

struct ExpertTime {
  double flops = 0;
  std::int64_t time_ns = 0;
  double share_of_peak() const {
    return flops / static_cast<double>(time_ns) * 1e9 / profile().matrix.peak_flops_per_s.at(DType::kBF16);
  }
};

ExpertTime time_of_experts(const StepEstimate& plan) {
  ExpertTime sum;
  for (std::size_t i = 0; i < plan.run().recording.entries.size(); ++i) {
    const Entry& entry = plan.run().recording.entries[i];
    if (!plan.run().recording.text(entry.name).starts_with("grouped_linear")) continue;
    EXPECT_EQ(entry.cost.unit, device::Unit::kMatrix);
    sum.flops += entry.cost.flops;
    sum.time_ns += plan.run().times.entries[i].end - plan.run().times.entries[i].start;
  }
  return sum;
}

// Of a token: the active parameters of the matrices, and attention over half the sequence.
TEST(Experts, AreInTheModelsArithmetic) {
  const double tokens = 4096, layers = 48, hidden = 2048, heads = 4096, kv = 512;
  const double matrices =
      layers * (2 * hidden * heads + 2 * hidden * kv + hidden * 128 + 8 * 3 * hidden * 768) + hidden * 151936;
  const double attention = layers * 4 * heads * (tokens + 1) / 2;
  const StepEstimate plan = plan_of_experts(4096);
  EXPECT_NEAR(plan.throughput.model_flops, 3 * tokens * (2 * matrices + attention), 1e-3 * plan.throughput.model_flops);
}

// 256 rows an expert run near the rate of large products, 8 do not fill a tile.
TEST(Experts, RunAtTheRateOfProductsOfTheirRows) {
  const double many = time_of_experts(plan_of_experts(4096)).share_of_peak();
  const double few = time_of_experts(plan_of_experts(128)).share_of_peak();
  EXPECT_GT(many, 0.3);
  EXPECT_LT(many, 0.9);
  EXPECT_LT(few, many / 4);
}

}  // namespace
}  // namespace loom::plan
