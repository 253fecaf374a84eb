// Promise: the trace of a plan is well-formed and says what the plan says: the step's length, its phases, its
//          collectives with their ranks, and the peaks of memory; what waits points to what it waited for.
// World:   rank 0 of 8; a decoder of two layers; the h200 profile.
#include "engine/plan/plan_trace.h"

#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/cli/words/arguments.h"
#include "engine/observe/perfetto.h"
#include "engine/virtual_time/find_profile.h"
#include "sharding/memory.h"
#include "tests/support/files.h"
#include "tests/support/trace_reader.h"

namespace loom::plan {
namespace {

using test::TracedArrow;
using test::TracedSlice;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

class PlanTrace : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto folder = std::filesystem::path(::testing::TempDir()) / "shardloom_plan_trace";
    test::write_file(folder / "model.yaml",
                     "model_type: qwen2\nvocab_size: 256\nhidden_size: 64\nintermediate_size: 128\n"
                     "num_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 2\n"
                     "max_position_embeddings: 64\nrms_norm_eps: 1.0e-6\ntie_word_embeddings: false\n");
    test::write_file(folder / "fsdp2.yaml",
                     "sharding_size: auto\n"
                     "sub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n");
    const std::vector<std::string> words = {"shardloom",
                                            "plan",
                                            "--model-config",
                                            (folder / "model.yaml").string(),
                                            "--use-torch-fsdp2",
                                            "--fsdp2-config-path",
                                            (folder / "fsdp2.yaml").string(),
                                            "--world-size",
                                            "8",
                                            "--seq-length",
                                            "64",
                                            "--global-batch-size",
                                            "16"};
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    const auto arguments =
        std::get<cli::PlanArguments>(cli::parse_arguments(static_cast<int>(argv.size()), argv.data()));
    plan = new StepEstimate(
        estimate_step(arguments.train, cli::hub_callbacks(arguments.train), virtual_time::find_profile("h200")));
    trace = new test::TraceReader(to_perfetto(*plan));
  }
  static void TearDownTestSuite() {
    delete trace;
    delete plan;
  }

  static StepEstimate* plan;
  static test::TraceReader* trace;
};
StepEstimate* PlanTrace::plan = nullptr;
test::TraceReader* PlanTrace::trace = nullptr;

TEST_F(PlanTrace, IsOneProcessWithALaneForPhasesHostAndEachStream) {
  EXPECT_EQ(trace->processes, (std::map<int, std::string>{{0, "rank 0: virtual time on h200"}}));
  EXPECT_THAT(trace->lane_names(0),
              IsSupersetOf({"phases", "host", "compute", "gather_copy_in", "gather", "reduce_scatter"}));
}

TEST_F(PlanTrace, SlicesOfALaneNeverOverlap) { trace->expect_lanes_in_order(/*nested=*/false); }

TEST_F(PlanTrace, EveryArrowBindsToTwoSlicesAndNonePointsBackInTime) {
  EXPECT_THAT(trace->loose_ends, IsEmpty());
  EXPECT_FALSE(trace->arrows.empty());
}

TEST_F(PlanTrace, ComputeWaitsForGathersAndReductionsForCompute) {
  EXPECT_THAT(trace->arrows, Contains(AllOf(Field(&TracedArrow::from, "all_gather model.layers.0"),
                                            Field(&TracedArrow::to_lane, "compute"))));
  EXPECT_THAT(trace->arrows, Contains(AllOf(Field(&TracedArrow::from_lane, "compute"),
                                            Field(&TracedArrow::to_lane, "reduce_scatter"))));
}

TEST_F(PlanTrace, TheStepIsAsLongAsThePlanSays) {
  const auto& phases = trace->lane(0, "phases");
  const auto step = std::ranges::find(phases, "step", &TracedSlice::category);
  ASSERT_NE(step, phases.end());
  EXPECT_EQ(step->start_ns, 0);
  EXPECT_EQ(step->end_ns, plan->time.step_ns);
  for (const TracedSlice& slice : trace->slices(0)) EXPECT_LE(slice.end_ns, plan->time.step_ns) << slice.name;
}

TEST_F(PlanTrace, PhasesAreThoseOfThePlanForEachMicroBatch) {
  std::vector<std::string> names;
  std::map<std::string, std::int64_t> lengths;
  for (const TracedSlice& slice : trace->lane(0, "phases")) {
    if (slice.category != "phase") continue;
    names.push_back(slice.name);
    lengths[slice.name] += slice.end_ns - slice.start_ns;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"forward", "backward", "forward", "backward", "optimizer"}));
  for (const PhaseTime& phase : plan->time.phases) {
    EXPECT_EQ(lengths[phase.phase], phase.compute_ns) << phase.phase;
  }
}

TEST_F(PlanTrace, HasEveryCollectiveWithItsGroupRanksAndBytes) {
  std::int64_t planned = 0;
  std::int64_t planned_bytes = 0;
  for (const CommunicationEstimate& kind : plan->communication) {
    planned += kind.count;
    planned_bytes += kind.received_bytes;
  }
  std::int64_t found = 0;
  std::int64_t bytes = 0;
  for (const TracedSlice& slice : trace->slices(0)) {
    if (slice.category != "collective") continue;
    ++found;
    bytes += slice.args.at("received_bytes").get<std::int64_t>();
    EXPECT_EQ(slice.args.at("ranks"), "0-7");
    EXPECT_EQ(slice.args.at("members"), 8);
    EXPECT_GT(slice.args.at("bytes"), 0);
    EXPECT_THAT(slice.name, HasSubstr(slice.args.at("group").get<std::string>()));
  }
  EXPECT_EQ(found, planned);
  EXPECT_EQ(bytes, planned_bytes);
}

TEST_F(PlanTrace, MatrixProductsHaveTheirShapes) {
  EXPECT_THAT(trace->lane(0, "compute"),
              Contains(AllOf(Field(&TracedSlice::category, "kernel"), Field(&TracedSlice::args, Contains(64)))));
  for (const TracedSlice& slice : trace->lane(0, "compute")) {
    if (!slice.args.contains("m")) continue;
    EXPECT_GT(slice.args.at("n"), 0) << slice.name;
    EXPECT_GT(slice.args.at("k"), 0) << slice.name;
    EXPECT_EQ(slice.args.at("dtype"), "fp32") << slice.name;
  }
}

TEST_F(PlanTrace, CountersReachThePeaksOfThePlanAndNoMore) {
  EXPECT_EQ(trace->peak(0, "memory: allocated"), plan->memory.peak_allocated_bytes);
  EXPECT_EQ(trace->peak(0, "memory: reserved"), plan->memory.reserved_bytes);
  EXPECT_EQ(trace->counters.at({0, "memory: allocated"}).back(), plan->memory.steady_allocated_bytes);
  for (const device::MemCategory category : sharding::kMemCategories) {
    const std::string name = "memory: " + std::string(category.name());
    std::int64_t at_a_peak = 0;
    for (const PhaseMemory& phase : plan->memory.phases) {
      at_a_peak = std::max(at_a_peak, phase.by_category_at_peak[category]);
    }
    EXPECT_GE(trace->peak(0, name), at_a_peak) << name;
  }
  EXPECT_EQ(trace->peak(0, "memory: shard"), plan->memory.phases.front().by_category_at_peak[sharding::kShard]);
}

TEST_F(PlanTrace, ItsHeaderSaysWhatWasPlanned) {
  const auto& about = trace->json.at("otherData");
  EXPECT_EQ(about.at("device"), "h200");
  EXPECT_EQ(about.at("world_size"), 8);
  EXPECT_EQ(about.at("step_ns"), plan->time.step_ns);
}

TEST(RanksInShort, AreRangesWhereTheyCanBe) {
  EXPECT_EQ(observe::in_short({3}), "3");
  EXPECT_EQ(observe::in_short({1, 5}), "1, 5");
  EXPECT_EQ(observe::in_short({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(observe::in_short({1, 9, 17}), "1-17 in steps of 8");
  EXPECT_EQ(observe::in_short({0, 1, 3}), "0, 1, 3");
}

}  // namespace
}  // namespace loom::plan
