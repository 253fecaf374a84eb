// Promise: with the job of the run, an out of memory gets its allocation and changes that fit, and a hang its group and
//          its phase; what a text alone does not say is not made up.
// World:   the quick start's model, four ranks, two micro-batches; texts made of its plan.
#include "engine/explain/explanation.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/core/wrapped.h"
#include "sharding/memory.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::explain {
namespace {

using std::string;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One allocation above the small and the large segments, of the head's logits or a block's activations.
train::TrainSections job() {
  train::TrainSections a = plan::arguments("full_shard.yaml");
  a.data.seq_length = 512;
  a.schedule.micro_batch_size = 8;
  a.schedule.global_batch_size = 2 * plan::kRanks * a.schedule.micro_batch_size;
  return a;
}

struct Planned {
  train::TrainSections arguments = job();
  train::PretrainCallbacks callbacks = cli::hub_callbacks(arguments);
  virtual_time::HardwareProfile profile = plan::profile();
  JobOfRun job_of_run{arguments, callbacks, profile, {}};
};

std::string gib(std::int64_t bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / static_cast<double>(1 << 20));
}

std::string out_of_memory(std::int64_t tried, std::int64_t allocated, std::int64_t capacity) {
  return fmt::format(
      "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 2 has a total "
      "capacity of {} of which 0 bytes is free. Of the allocated memory {} is allocated by PyTorch, and {} "
      "is reserved by PyTorch but unallocated.",
      gib(tried), gib(capacity), gib(allocated), gib(capacity - allocated));
}

TEST(Explanation, PlacesAnAllocationByItsSegmentAndWhatIsAllocated) {
  const Planned planned;
  const plan::JobAllocations allocations(planned.arguments, planned.callbacks, planned.profile);
  EXPECT_GT(allocations.points().size(), 100u);
  // A large request at the peak of the later step.
  const plan::AllocationPoint* at_peak = nullptr;
  for (const auto& point : allocations.points()) {
    if (point.step != 2 || point.bytes < 20 * plan::kMiB) continue;
    if (at_peak == nullptr || point.allocated_before_bytes > at_peak->allocated_before_bytes) at_peak = &point;
  }
  ASSERT_NE(at_peak, nullptr);
  const std::string text = out_of_memory(plan::segment_bytes_of(at_peak->bytes), at_peak->allocated_before_bytes,
                                         at_peak->allocated_before_bytes + at_peak->bytes * 9 / 10);
  const Explanation explanation = explain("", read_text(text), &planned.job_of_run);
  ASSERT_TRUE(explanation.memory && explanation.memory->place);
  const MemoryPlace& place = *explanation.memory->place;
  EXPECT_TRUE(place.size_matches);
  ASSERT_FALSE(place.places.empty());
  EXPECT_EQ(place.places[0].place, allocations.place_of(*at_peak));
  EXPECT_EQ(explanation.memory->ranks, std::vector<std::int64_t>{2});
  ASSERT_FALSE(place.changes.empty()) << to_text(explanation);
  for (const FittingChange& change : place.changes) EXPECT_LE(change.peak_reserved_bytes, *place.limit_bytes);
  EXPECT_TRUE(std::ranges::any_of(
      place.changes, [](const auto& c) { return c.change.find("--micro-batch-size") != std::string::npos; }));
  const std::string shown = to_text(explanation);
  EXPECT_THAT(shown, HasSubstr("out of memory in line 1, on rank 2, GPU 2"));
  EXPECT_THAT(shown, HasSubstr("it would fit, the fastest first, with"));
}

// Rank 2 is of the second place.
TEST(Explanation, PlacesAnAllocationInAPipeline) {
  train::TrainSections a = job();
  a.parallel.pipeline.pipeline_model_parallel_size = 2;
  a.schedule.global_batch_size = 4 * plan::kRanks * a.schedule.micro_batch_size;
  const train::PretrainCallbacks callbacks = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile profile = plan::profile();
  const plan::JobAllocations allocations(a, callbacks, profile, 2);
  const auto of_mlp = std::ranges::find_if(allocations.points(), [&](const plan::AllocationPoint& point) {
    const plan::AllocationPlace place = allocations.place_of(point);
    return point.step == 2 && point.bytes > 2 * plan::kMiB && place.module == "model.layers.7.mlp" &&
           place.micro_batch == 1;
  });
  ASSERT_NE(of_mlp, allocations.points().end());
  const plan::AllocationPlace place = allocations.place_of(*of_mlp);
  EXPECT_EQ(place.stage, 1);
  EXPECT_THAT(plan::to_text(place), HasSubstr("of micro-batch 1 on stage 1"));
  const JobOfRun run{a, callbacks, profile, {}};
  const std::string text = out_of_memory(plan::segment_bytes_of(of_mlp->bytes), of_mlp->allocated_before_bytes,
                                         of_mlp->allocated_before_bytes + of_mlp->bytes / 2);
  const Explanation explanation = explain("", read_text(text), &run);
  ASSERT_FALSE(explanation.memory->place->places.empty());
  EXPECT_EQ(explanation.memory->place->places.front().place.stage, 1);
}

TEST(Explanation, KnowsTheKindsOfAllocations) {
  const Planned planned;
  const plan::JobAllocations allocations(planned.arguments, planned.callbacks, planned.profile);
  std::map<device::MemCategory, plan::AllocationPlace> first;
  for (const auto& point : allocations.points()) first.try_emplace(point.category, allocations.place_of(point));
  EXPECT_EQ(first.at(sharding::kGatherBuffer).what, "buffer of an all-gather");
  EXPECT_EQ(first.at(device::MemCategory::kParameter).what, "whole parameters");
  EXPECT_FALSE(first.at(device::MemCategory::kParameter).group.empty());
  EXPECT_EQ(first.at(sharding::kReduceBuffer).phase, "backward");
  EXPECT_EQ(first.at(device::MemCategory::kOptimizerState).phase, "optimizer");
  EXPECT_THAT(first.at(device::MemCategory::kActivation).what, HasSubstr("output of "));
  // The first step alone makes optimizer state.
  for (const auto& point : allocations.points()) {
    if (point.category != device::MemCategory::kOptimizerState) continue;
    EXPECT_EQ(point.step, 1);
  }
}

TEST(Explanation, SaysWhereNoAllocationHasTheSize) {
  const Planned planned;
  const Explanation explanation = explain(
      "", read_text(out_of_memory(std::int64_t{777} << 30, 1 << 20, std::int64_t{1} << 37)), &planned.job_of_run);
  EXPECT_FALSE(explanation.memory->place->size_matches);
  EXPECT_THAT(to_text(explanation),
              HasSubstr("no allocation of the planned step requests that size: check that the job "
                        "is the run's"));
}

std::string timeout(std::int64_t rank, std::int64_t seq, const PlannedCollective& planned) {
  return fmt::format(
      "[rank{0}]:[E] [PG ID 1 PG GUID 1 Rank {0}] Watchdog caught collective operation timeout: "
      "WorkNCCL(SeqNum={1}, OpType=_{2}_BASE, NumelIn={3}, NumelOut={4}, Timeout(ms)=600000) ran for "
      "600010 milliseconds before timing out.\n",
      rank, seq, planned.op, planned.numel_in().value(), planned.numel_out().value());
}

TEST(Explanation, PlacesAHangAndNamesTheSilentRank) {
  const Planned planned;
  const plan::StepEstimate step =
      plan::estimate_step(planned.arguments, planned.callbacks, planned.profile, plan::Capacity::kLifted);
  const CollectiveOrder order = collective_orders(step.run().recording).front();
  // The last gather of the first micro-batch's forward, in the third step.
  std::size_t at = 0;
  for (std::size_t i = 0; i < order.step.size(); ++i) {
    if (order.step[i].phase == "forward" && order.step[i].micro_batch == 0) at = i;
  }
  const auto seq = static_cast<std::int64_t>(2 * order.step.size() + at + 1);
  std::string log;
  for (const int rank : {0, 1, 3}) log += timeout(rank, seq, order.step[at]);
  const Explanation explanation = explain("run.log", read_text(log), &planned.job_of_run);
  ASSERT_EQ(explanation.hangs.size(), 1u);
  const ExplainedHang& hang = explanation.hangs[0];
  EXPECT_THAT(hang.hang.silent, ElementsAre(2));
  ASSERT_TRUE(hang.place);
  EXPECT_EQ(hang.place->step, 3);
  const auto same = [&](const PlannedCollective& c) { return c.subject == order.step[at].subject; };
  EXPECT_TRUE(std::ranges::any_of(hang.place->candidates, same));
  const std::string shown = to_text(explanation);
  EXPECT_THAT(shown, HasSubstr("run.log: 3 lines; 3 nccl_timeout\n"));
  EXPECT_THAT(shown, HasSubstr("suspects: rank 2, without any report"));
  EXPECT_THAT(shown, HasSubstr("in forward of micro-batch 0"));
}

string event(std::int64_t rank, const string& text) {
  return fmt::format("[rank{}]:V1127 04:27:24.086000 21556 torch/fsdp.py:446] FSDP::{}\n", rank, text);
}

// The gather of a block in the second micro-batch of a later step: all blocks have gathers of that size.
TEST(Explanation, PlacesAnAllocationOfTheHostWhereTheTraceLeavesTheRank) {
  const Planned planned;
  const plan::JobAllocations allocations(planned.arguments, planned.callbacks, planned.profile);
  const auto is_it = [&](const plan::AllocationPoint& point) {
    if (point.step != 2 || point.category != sharding::kGatherBuffer) return false;
    const plan::AllocationPlace place = allocations.place_of(point);
    return place.group == "model.layers.1" && place.phase == "forward" && place.micro_batch == 1;
  };
  const auto point = std::ranges::find_if(allocations.points(), is_it);
  ASSERT_NE(point, allocations.points().end());
  string log;
  for (int pass = 1; pass <= 4; ++pass) log += event(2, "root_pre_forward");
  log += event(2, "pre_forward (model.layers.1)");
  log += fmt::format(
      "[rank2]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
      "you tried to allocate {} bytes. Error code 12 (Cannot allocate memory)\n",
      point->bytes);
  const Explanation explanation = explain("", read_text(log), &planned.job_of_run);
  const MemoryPlace& place = *explanation.memory->place;
  EXPECT_TRUE(place.size_matches && place.by_trace);
  ASSERT_EQ(place.places.size(), 1u) << to_text(explanation);
  EXPECT_EQ(place.places[0].place, allocations.place_of(*point));
  EXPECT_EQ(place.places[0].step, 2);
  EXPECT_TRUE(place.changes.empty());
  EXPECT_THAT(to_text(explanation), HasSubstr("requested of the host's allocator"));
}

string mismatch(std::int64_t rank, const PlannedCollective& own, std::int64_t seq) {
  return fmt::format(
      "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
      "CollectiveFingerPrint(SequenceNumber={1}, OpType=_{2}_BASE, TensorShape=[{3}], TensorDtypes=Float), but Rank 0 is "
      "running collective: CollectiveFingerPrint(SequenceNumber=0OpType=GATHER)\n",
      rank, seq, own.op, own.numel_in().value());
}

// Sizes show the fault only behind the last block: any block may be the one that rank 2 skipped.
TEST(Explanation, NamesWhatARankSkippedByTheTrace) {
  const Planned planned;
  const plan::StepEstimate step =
      plan::estimate_step(planned.arguments, planned.callbacks, planned.profile, plan::Capacity::kLifted);
  const CollectiveOrder order = collective_orders(step.run().recording).front();
  const auto is_head = [](const PlannedCollective& one) { return one.subject == "lm_head" && one.phase == "forward"; };
  const auto head = std::ranges::find_if(order.step, is_head);
  ASSERT_NE(head, order.step.end());
  const auto seq = static_cast<std::int64_t>(head - order.step.begin()) - 1;
  string log;
  for (const std::int64_t rank : {0, 1, 2, 3}) {
    log += event(rank, "root_pre_forward") + event(rank, "pre_forward (model.layers.0)");
    log += event(rank, "post_forward (model.layers.0)");
    if (rank != 2) log += event(rank, "pre_forward (model.layers.1)");
    if (rank == 2) log += event(rank, "pre_forward (model.layers.2)");
    log += mismatch(rank, rank == 2 ? *head : *std::prev(head), seq);
  }
  const Explanation explanation = explain("", read_text(log), &planned.job_of_run);
  ASSERT_TRUE(explanation.hangs.size() == 1 && explanation.hangs[0].place);
  ASSERT_EQ(explanation.hangs[0].place->out_of_order.size(), 1u);
  const OutOfOrder& found = explanation.hangs[0].place->out_of_order[0];
  EXPECT_EQ(found.other.rank, 2);
  EXPECT_EQ(found.ahead, 1);
  ASSERT_EQ(found.skipped.size(), 1u) << to_text(explanation);
  EXPECT_EQ(found.skipped[0].subject, "model.layers.1");
}

TEST(Explanation, SaysWhatGloosTextsLack) {
  const string shown = to_text(explain(
      "",
      read_text("[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out "
                "waiting 8000ms for recv operation to complete"),
      nullptr));
  EXPECT_THAT(shown, HasSubstr("gloo: rank 0 waited for another rank in vain"));
  EXPECT_THAT(shown, HasSubstr("these texts name no collective and no module"));
}

TEST(Explanation, OfATextAloneAsksForTheJob) {
  const Explanation explanation = explain("", read_text(out_of_memory(1 << 30, 1 << 30, 3LL << 30)), nullptr);
  EXPECT_FALSE(explanation.memory->place);
  const std::string shown = to_text(explanation);
  EXPECT_THAT(shown, HasSubstr("fragmentation: the request is smaller than what is reserved and unallocated"));
  EXPECT_THAT(shown, HasSubstr("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
  EXPECT_THAT(shown, HasSubstr("The job's words behind the text"));
  EXPECT_TRUE(to_json(explanation)["memory"]["place"].is_null());
}

TEST(Explanation, NamesTheRanksOfHccl) {
  const std::string text =
      "EI0002: [PID: 1] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register times out. Reason: The "
      "Notify register has not received the Notify record from remote rank: [24]. base information: [tag[AllReduce_1], "
      "x]. rankSize[32]\nEI0006: [PID: 2] 2025-10-11-15:09:34.713.335 Getting socket times out.";
  const std::string shown = to_text(explain("", read_text(text), nullptr));
  EXPECT_THAT(shown, HasSubstr("EI0002 (line 1): a rank waited for another one longer than HCCL_EXEC_TIMEOUT;\n    in "
                               "AllReduce_1 of 32 ranks"));
  EXPECT_THAT(shown, HasSubstr("suspect: rank 24, which did not answer"));
  EXPECT_THAT(shown, HasSubstr("HCCL_CONNECT_TIMEOUT"));
}

TEST(Explanation, IsAtMostAsWideAsATerminal) {
  const std::string shown = to_text(explain("", read_text(out_of_memory(1 << 30, 1 << 30, 3LL << 30)), nullptr));
  std::istringstream lines(shown);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), kTextColumns) << line;
}

}  // namespace
}  // namespace loom::explain
