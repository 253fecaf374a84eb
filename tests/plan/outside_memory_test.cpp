// Promise: a plan counts the communicators that its step makes, one for each set of ranks, and gives the allocator what
//          they and the context leave of the device; texts and JSON name each of them.
// World:   rank 0 of 1 and of 4 planned ranks; a Qwen3-MoE of two layers; the profiles of an H200 and an Ascend 910B.
#include "engine/plan/outside_memory.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/cli/hub_callbacks.h"
#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/plan/plan_output.h"
#include "engine/virtual_time/find_profile.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

constexpr std::int64_t kNccl = 688 * kMiB;  // a communicator of the profile h200: 496 MiB and 48 buffers of 4 MiB
constexpr std::int64_t kContext = 848 * kMiB;
constexpr const char* kModel =
    "model_type: qwen3_moe\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
    "num_attention_heads: 4\nnum_key_value_heads: 2\nhead_dim: 8\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
    "num_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 8\nnorm_topk_prob: true\ndecoder_sparse_step: 1\n"
    "mlp_only_layers: []\ntie_word_embeddings: false\n";

// `data`: ranks that read samples of their own.
train::TrainSections job(const std::string& keys, int data = kRanks, int ranks = kRanks) {
  train::TrainSections a = arguments();
  const std::filesystem::path folder = test::fresh_folder();
  a.model.model_config = test::write_file(folder / "moe.yaml", kModel);
  a.parallel.fsdp2_config_path = test::write_file(
      folder / "sharding.yaml", "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n" + keys);
  a.data.seq_length = 16;
  a.launch.ranks = ranks;
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = data;
  return a;
}

StepEstimate planned(const train::TrainSections& a, const virtual_time::HardwareProfile& on) {
  return estimate_step(a, cli::hub_callbacks(a), on);
}

std::vector<int> sizes_of(const OutsideMemory& outside) {
  std::vector<int> sizes;
  for (const Communicator& communicator : outside.communicators) sizes.push_back(communicator.ranks);
  return sizes;
}

struct Case {
  const char* name;
  std::string keys;
  std::vector<int> sizes;  // of the communicators
  int data = kRanks;
};
void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }

const std::string kShards = "sharding_size: auto\n";
const std::string kSharedExperts = "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n";

class Communicators : public ::testing::TestWithParam<Case> {};

TEST_P(Communicators, TakeTheirMemoryFromTheAllocator) {
  const virtual_time::HardwareProfile h200 = virtual_time::find_profile("h200");
  const train::TrainSections a = job(GetParam().keys, GetParam().data);
  const MemoryEstimate memory = planned(a, h200).memory;
  const auto count = static_cast<std::int64_t>(GetParam().sizes.size());
  EXPECT_THAT(sizes_of(memory.outside), UnorderedElementsAreArray(GetParam().sizes));
  for (const Communicator& communicator : memory.outside.communicators) EXPECT_EQ(communicator.bytes, kNccl);
  EXPECT_EQ(memory.outside.bytes(), kContext + count * kNccl);
  EXPECT_EQ(memory.capacity_bytes, h200.memory.capacity_bytes - kContext - count * kNccl);
  EXPECT_EQ(memory.shown_bytes, memory.reserved_bytes + kContext + count * kNccl);
}

// So that a budget is known before the step is planned.
TEST_P(Communicators, AreKnownFromTheAxes) {
  const train::TrainSections a = job(GetParam().keys, GetParam().data);
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  std::vector<int> sizes;
  for (const comm::UsedGroup& group : expected_groups(a, train::read_inputs(a, calls))) {
    sizes.push_back(static_cast<int>(group.ranks.size()));
  }
  EXPECT_THAT(sizes, UnorderedElementsAreArray(GetParam().sizes));
}

INSTANTIATE_TEST_SUITE_P(OfAxes, Communicators,
                         ::testing::Values(Case{"Fsdp", kShards, {4}}, Case{"Hsdp", "sharding_size: 2\n", {4, 2, 2}},
                                           Case{"Node", kShards + "reshard_after_forward: 2\n", {4, 2}},
                                           Case{"Tensor", kShards + "tensor_parallel_size: 2\n", {4, 2, 2}, 2},
                                           Case{"Ring", kShards + "ring_attention_size: 2\n", {4, 2}, 2},
                                           Case{"Ulysses", kShards + "ulysses_parallel_size: 2\n", {4, 2}, 2},
                                           Case{"Experts", kShards + kSharedExperts, {4, 2, 2}}),
                         [](const auto& info) { return info.param.name; });

// Neighbours with copies of key and value heads are an axis that only the model's heads tell of.
TEST(OutsideMemory, CountsGroupsThatOnlyTheStepTells) {
  const train::TrainSections a = job("sharding_size: 1\ntensor_parallel_size: 4\n", 1);
  const virtual_time::HardwareProfile h200 = virtual_time::find_profile("h200");
  const MemoryEstimate memory = planned(a, h200).memory;
  EXPECT_THAT(sizes_of(memory.outside), UnorderedElementsAreArray({4, 2}));
  EXPECT_EQ(memory.capacity_bytes, h200.memory.capacity_bytes - kContext - 2 * kNccl);
}

TEST(OutsideMemory, IsTheContextAloneOnOneRank) {
  const MemoryEstimate memory = planned(job(kShards, 1, 1), virtual_time::find_profile("h200")).memory;
  EXPECT_TRUE(memory.outside.communicators.empty());
  EXPECT_EQ(memory.outside.bytes(), kContext);
}

TEST(OutsideMemory, IsNamedPartByPart) {
  const StepEstimate plan = planned(job(kShards), virtual_time::find_profile("h200"));
  ASSERT_EQ(plan.memory.outside.communicators.size(), 1u);
  const std::string& name = plan.memory.outside.communicators[0].name;
  EXPECT_THAT(name, AllOf(HasSubstr("world"), HasSubstr("dp_shard"), HasSubstr("loss")));
  EXPECT_EQ(parts_text(plan.memory.outside), "context 848.00 MiB, 1 communicator 688.00 MiB (" + name + " of 4 ranks)");
  std::string text = to_text(plan);
  for (std::size_t at; (at = text.find("\n    ")) != std::string::npos;) text.replace(at, 5, " ");
  EXPECT_THAT(text, HasSubstr("outside the allocator 1.50 GiB: context 848.00 MiB, 1 communicator 688.00 MiB ("));
  EXPECT_THAT(text, HasSubstr("; nvidia-smi would show "));
  const nlohmann::ordered_json json = to_json(plan)["memory"];
  EXPECT_EQ(json["outside"]["bytes"], kContext + kNccl);
  EXPECT_EQ(json["outside"]["library"], "nccl");
  EXPECT_EQ(json["outside"]["buffer_bytes"], 4 * kMiB);
  EXPECT_EQ(json["outside"]["communicators"][0]["bytes"], kNccl);
  EXPECT_EQ(json["shown_bytes"], plan.memory.shown_bytes);
  EXPECT_EQ(json["workspace_bytes"], 64 * kMiB);
}

// 2 x 200 MB a communicator.
TEST(OutsideMemory, OfAnNpuHasTwoBuffersForEachCommunicator) {
  const virtual_time::HardwareProfile npu = virtual_time::find_profile("ascend-910b");
  const StepEstimate plan = planned(job("sharding_size: 2\n"), npu);
  EXPECT_EQ(plan.memory.outside.communicator_bytes(), 3 * 2 * 200 * kMiB);
  EXPECT_EQ(plan.memory.outside.tool, "npu-smi");
  EXPECT_EQ(plan.memory.capacity_bytes, npu.memory.capacity_bytes - 1024 * kMiB - 1200 * kMiB);
}

TEST(OutsideMemory, IsNothingWhereTheProfileHasNone) {
  const StepEstimate plan = planned(job(kShards), profile());
  EXPECT_EQ(plan.memory.outside.bytes(), 0);
  EXPECT_THAT(to_text(plan), Not(HasSubstr("outside the allocator")));
}

// --device-memory is the allocator's own.
TEST(OutsideMemory, LeavesAGivenLimitAlone) {
  train::TrainSections a = job(kShards);
  a.memory.device_memory_mib = 512;
  const MemoryEstimate memory = planned(a, virtual_time::find_profile("h200")).memory;
  EXPECT_EQ(memory.capacity_bytes, 512 * kMiB);
  EXPECT_EQ(memory.outside.bytes(), kContext + kNccl);
}

TEST(OutsideMemory, IsInTheTextOfAStepThatDoesNotFit) {
  virtual_time::HardwareProfile small = virtual_time::find_profile("h200");
  small.memory.capacity_bytes = kContext + 3 * kNccl + 2 * kMiB;
  const train::TrainSections hsdp = job("sharding_size: 2\n");
  EXPECT_THAT(test::message_of<OutOfMemoryError>([&] { planned(hsdp, small); }),
              AllOf(HasSubstr("of 2.0 MiB free"),
                    HasSubstr("\n  outside the allocator are 2.84 GiB of the device's 2.85 GiB: context 848.00 MiB, 3 "
                              "communicators 2.02 GiB (")));
  small.memory.capacity_bytes = kContext + 3 * kNccl;
  EXPECT_THAT(test::message_of<OutOfMemoryError>([&] { planned(hsdp, small); }),
              AllOf(HasSubstr("out of memory before the first allocation: the device has 2.84 GiB, and outside the "
                              "allocator are 2.84 GiB: context 848.00 MiB, 3 communicators 2.02 GiB ("),
                    HasSubstr("; use fewer axes of ranks, or a smaller NCCL_BUFFSIZE")));
}

}  // namespace
}  // namespace loom::plan
