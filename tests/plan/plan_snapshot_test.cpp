// Promise: the snapshot of a plan is the plan: its segments are the reserved memory and its active blocks the allocated
//          memory at the end of the step, its trace reaches the peaks; PyTorch's viewer can play it backwards; frames
//          name module, operator and phase.
// World:   tests/support/small_plan.h; also with expandable segments, and with two stages.
#include <gmock/gmock.h>
#include <limits>
#include <map>
#include <ranges>
#include <span>

#include "engine/cli/hub_callbacks.h"
#include "engine/formats/torch/memory_snapshot.h"
#include "engine/plan/plan_trace.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using io::SnapshotAction;
using io::SnapshotState;
using ::testing::IsSupersetOf;

struct Planned {
  StepEstimate plan;
  io::MemorySnapshot snapshot;
};

Planned planned(train::TrainSections a) {
  a.memory.record_allocator = true;
  Planned made{estimate_step(a, cli::hub_callbacks(a), profile()), {}};
  const std::string bytes = to_memory_snapshot(made.plan);
  made.snapshot = io::read_memory_snapshot(std::as_bytes(std::span(bytes)), "s.pickle");
  return made;
}

const std::vector<io::SnapshotEvent>& trace_of(const Planned& made) { return made.snapshot.device_traces.at(0); }

// The sum that these events add and remove, which ends at `end`: at the most.
std::int64_t most(const Planned& made, std::int64_t end, const std::vector<SnapshotAction>& adds,
                  const std::vector<SnapshotAction>& removes) {
  std::int64_t now = end, most = end;
  for (const io::SnapshotEvent& event : std::views::reverse(trace_of(made))) {
    if (std::ranges::count(adds, event.action) > 0) now -= event.size;
    if (std::ranges::count(removes, event.action) > 0) now += event.size;
    most = std::max(most, now);
  }
  return most;
}

void expect_bytes_of_the_plan(const Planned& made) {
  std::int64_t reserved = 0, active = 0;
  for (const io::SnapshotSegment& segment : made.snapshot.segments) {
    reserved += segment.total_size;
    active += segment.bytes_of(SnapshotState::kActive);
    EXPECT_EQ(segment.bytes_of(SnapshotState::kPendingFree), 0);
  }
  const MemoryEstimate& memory = made.plan.memory;
  EXPECT_EQ(reserved, memory.reserved_bytes);
  EXPECT_EQ(active, memory.steady_allocated_bytes);
  EXPECT_EQ(most(made, active, {SnapshotAction::kAlloc}, {SnapshotAction::kFreeCompleted}),
            memory.peak_allocated_bytes);
  EXPECT_EQ(most(made, reserved, {SnapshotAction::kSegmentAlloc, SnapshotAction::kSegmentMap},
                 {SnapshotAction::kSegmentFree, SnapshotAction::kSegmentUnmap}),
            memory.peak_reserved_bytes);
}

// As the viewer does it from the final blocks: each event undoes what is there, and nothing overlaps.
void expect_plays_backwards(const Planned& made) {
  std::map<std::int64_t, std::int64_t> blocks;
  for (const io::SnapshotSegment& segment : made.snapshot.segments) {
    for (const io::SnapshotBlock& block : segment.blocks) {
      if (block.state == SnapshotState::kActive) blocks[block.address] = block.size;
    }
  }
  std::int64_t time = std::numeric_limits<std::int64_t>::max();
  for (const io::SnapshotEvent& event : std::views::reverse(trace_of(made))) {
    EXPECT_LE(event.time_us, time);
    time = event.time_us;
    if (event.action == SnapshotAction::kAlloc) {
      ASSERT_EQ(blocks.erase(event.address), 1u);
    } else if (event.action == SnapshotAction::kFreeCompleted) {
      ASSERT_TRUE(blocks.emplace(event.address, event.size).second);
    }
  }
}

std::string frames_of(const io::MemorySnapshot& snapshot, std::int32_t stack) {
  std::string text;
  for (const std::int32_t number : snapshot.stacks.at(static_cast<std::size_t>(stack))) {
    const io::SnapshotFrame& frame = snapshot.frames.at(static_cast<std::size_t>(number));
    text += (text.empty() ? "" : " | ") + snapshot.texts.at(static_cast<std::size_t>(frame.filename)) + ": " +
            snapshot.texts.at(static_cast<std::size_t>(frame.name));
  }
  return text;
}

std::vector<std::string> all_frames(const Planned& made) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < made.snapshot.stacks.size(); ++i) {
    all.push_back(frames_of(made.snapshot, static_cast<std::int32_t>(i)));
  }
  return all;
}

TEST(PlanSnapshot, IsThePlanByExactBytes) {
  const Planned made = planned(arguments());
  expect_bytes_of_the_plan(made);
  expect_plays_backwards(made);
  EXPECT_GT(trace_of(made).size(), 500u);
  EXPECT_EQ(trace_of(made).back().action, SnapshotAction::kSnapshot);
}

TEST(PlanSnapshot, FramesNameModuleOperatorCategoryAndPhase) {
  EXPECT_THAT(all_frames(planned(arguments())),
              IsSupersetOf({"model.layers.1.mlp: gate_proj: linear | model.layers.1: mlp | model: layers.1 | "
                            "Qwen2ForCausalLM: model | Qwen2ForCausalLM: forward | activation: forward",
                            "model.layers.0: gather of 'model.layers.0' | model: embed_tokens | Qwen2ForCausalLM: "
                            "model | Qwen2ForCausalLM: forward | gather_buffer: forward"}));
}

TEST(PlanSnapshot, IsThePlanWithExpandableSegmentsToo) {
  train::TrainSections a = arguments();
  a.memory.alloc_conf = "expandable_segments:True";
  const Planned made = planned(a);
  expect_bytes_of_the_plan(made);
  expect_plays_backwards(made);
  EXPECT_TRUE(made.snapshot.settings.expandable_segments);
}

TEST(PlanSnapshot, IsOfTheRankWhoseFiguresThePlanShows) {
  train::TrainSections a = arguments();
  a.parallel.pipeline.pipeline_model_parallel_size = 2;
  expect_bytes_of_the_plan(planned(a));
}

}  // namespace
}  // namespace loom::plan
