// Promise: the snapshot of a plan is the plan: its segments are the reserved memory and its active blocks the allocated
//          memory at the end of the step, its trace reaches the peaks; PyTorch's viewer can play it backwards; frames name
//          module, operator and phase.
// World:   8 ranks; a decoder of two layers; the h200 profile. Also with expandable segments, and with two stages.
#include <gmock/gmock.h>
#include <limits>
#include <map>
#include <ranges>
#include <span>

#include "engine/cli/hub_callbacks.h"
#include "engine/cli/words/arguments.h"
#include "engine/formats/torch/memory_snapshot.h"
#include "engine/plan/plan_trace.h"
#include "engine/virtual_time/find_profile.h"
#include "tests/support/files.h"

namespace loom::plan {
namespace {

using io::SnapshotAction;
using io::SnapshotState;
using ::testing::IsSupersetOf;
using Words = std::vector<std::string>;

struct Planned {
  StepEstimate plan;
  io::MemorySnapshot snapshot;
};

Planned planned(const Words& more) {
  const auto folder = test::fresh_folder();
  test::write_file(folder / "model.yaml",
                   "model_type: qwen2\nvocab_size: 256\nhidden_size: 64\nintermediate_size: 128\n"
                   "num_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 2\n"
                   "max_position_embeddings: 64\nrms_norm_eps: 1.0e-6\ntie_word_embeddings: false\n");
  test::write_file(folder / "fsdp2.yaml",
                   "sharding_size: auto\nparam_dtype: bf16\n"
                   "sub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\", \"lm_head\"]\n");
  Words words = {"shardloom", "plan", "--model-config", (folder / "model.yaml").string(), "--use-torch-fsdp2"};
  words.insert(words.end(), {"--fsdp2-config-path", (folder / "fsdp2.yaml").string(), "--world-size", "8"});
  words.insert(words.end(), {"--seq-length", "64", "--memory-snapshot", (folder / "s.pickle").string()});
  words.insert(words.end(), more.begin(), more.end());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  auto arguments = std::get<cli::PlanArguments>(cli::parse_arguments(static_cast<int>(argv.size()), argv.data()));
  arguments.train.memory.record_allocator = true;
  Planned made{estimate_step(arguments.train, cli::hub_callbacks(arguments.train), virtual_time::find_profile("h200")),
               {}};
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
  const Planned made = planned({"--global-batch-size", "16"});
  expect_bytes_of_the_plan(made);
  expect_plays_backwards(made);
  EXPECT_GT(trace_of(made).size(), 500u);
  EXPECT_EQ(trace_of(made).back().action, SnapshotAction::kSnapshot);
}

TEST(PlanSnapshot, FramesNameModuleOperatorCategoryAndPhase) {
  EXPECT_THAT(all_frames(planned({"--global-batch-size", "8"})),
              IsSupersetOf({"model.layers.1.mlp: gate_proj: linear | model.layers.1: mlp | model: layers.1 | "
                            "Decoder: model | Decoder: forward | activation: forward",
                            "model.layers.0: gather of 'model.layers.0' | gather_buffer: backward"}));
}

TEST(PlanSnapshot, IsThePlanWithExpandableSegmentsToo) {
  const Planned made = planned({"--global-batch-size", "8", "--alloc-conf", "expandable_segments:True"});
  expect_bytes_of_the_plan(made);
  expect_plays_backwards(made);
  EXPECT_TRUE(made.snapshot.settings.expandable_segments);
}

TEST(PlanSnapshot, IsOfTheRankWhoseFiguresThePlanShows) {
  expect_bytes_of_the_plan(planned({"--global-batch-size", "16", "--pipeline-model-parallel-size", "2"}));
}

}  // namespace
}  // namespace loom::plan
