// Promise: in virtual time a pipeline takes as long as its schedule says, and its bubble is that of the papers; a plan
//          of a pipeline has the events, bytes and time of a run on every rank.
// World:   hand-made recordings of 2 and 4 ranks on the tiny device; the quick start's model on 4 ranks as threads.
#include <gmock/gmock.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>

#include "engine/cli/hub_callbacks.h"
#include "engine/plan/few_micro_batches.h"
#include "engine/plan/pipeline_split.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/plan_trace.h"
#include "engine/train/pipeline/streams.h"
#include "engine/train/schedule/pipeline_lowering.h"
#include "engine/train/schedule/pipeline_time.h"
#include "tests/plan/plan_and_run.h"
#include "tests/support/files.h"
#include "tests/support/tiny_profile.h"

namespace loom::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using train::PipelineAction;
using train::PipelineKind;

constexpr std::int64_t kUnit = 60;  // ns of a forward

// The list of a rank as it is issued: what is computed takes its units, messages take no time.
class RankByHand {
 public:
  RankByHand(const train::PipelineSchedule& schedule, std::int64_t rank) : schedule_(schedule), rank_(rank) {}

  void issue(const PipelineAction& action) {
    const std::int64_t stage = action.stage, micro_batch = action.micro_batch;
    switch (action.kind) {
      case PipelineKind::kForward:
        return compute(1, {'F', stage, micro_batch});
      case PipelineKind::kBackward:
        return compute(2, {'B', stage, micro_batch});
      case PipelineKind::kBackwardInput:
        return compute(1, {'B', stage, micro_batch});
      case PipelineKind::kBackwardWeight:
        return compute(1, {'W', stage, micro_batch});
      case PipelineKind::kSendForward:
        return send(stage + 1);
      case PipelineKind::kSendBackward:
        return send(stage - 1);
      case PipelineKind::kReceiveForward:
        return receive(stage - 1, {'F', stage, micro_batch});
      case PipelineKind::kReceiveBackward:
        return receive(stage + 1, {'B', stage, micro_batch});
      default:
        return;
    }
  }
  device::Recording recording() const { return made_.recording(); }

 private:
  using Key = std::tuple<char, std::int64_t, std::int64_t>;

  int rank_of(std::int64_t stage) const {
    return static_cast<int>(schedule_.stage_to_rank.at(static_cast<std::size_t>(stage)));
  }
  bool is_next(int peer) const { return peer == (rank_ + 1) % static_cast<std::int64_t>(schedule_.order.size()); }
  const std::vector<int>& pair(int from, int to) { return *pairs_.insert({from, to}).first; }

  void compute(std::int64_t units, const Key& what) {
    if (const auto message = received_.find(what); message != received_.end()) {
      made_.wait(device::StreamId::kCompute, message->second);
    }
    made_.compute(units * kUnit);
  }
  void send(std::int64_t stage) {
    const int to = rank_of(stage);
    const device::StreamId stream = is_next(to) ? train::kSendNextStream : train::kSendPreviousStream;
    made_.wait(stream, made_.log().last_of(device::StreamId::kCompute));
    made_.collective(stream, device::CollectiveKind::kMessage, 0, pair(static_cast<int>(rank_), to));
  }
  void receive(std::int64_t stage, const Key& what) {
    const int from = rank_of(stage);
    received_[what] = made_.collective(is_next(from) ? train::kReceiveNextStream : train::kReceivePreviousStream,
                                       device::CollectiveKind::kMessage, 0, pair(from, static_cast<int>(rank_)));
  }

  const train::PipelineSchedule& schedule_;
  const std::int64_t rank_;
  std::set<std::vector<int>> pairs_;
  std::map<Key, std::int64_t> received_;
  test::HandMade made_;
};

struct ByHand {
  std::int64_t step_ns = 0;
  PipelineEstimate estimate;
};

ByHand run_by_hand(const train::PipelineSchedule& schedule) {
  const train::PipelineLists lists = train::lower_pipeline(schedule);
  std::vector<device::Recording> recordings;
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    RankByHand by_hand(schedule, static_cast<std::int64_t>(rank));
    for (const train::PipelineStep& step : lists[rank]) {
      for (const PipelineAction& action : step.actions) by_hand.issue(action);
    }
    recordings.push_back(by_hand.recording());
  }
  std::vector<virtual_time::RankRecording> ranks;
  for (std::size_t r = 0; r < recordings.size(); ++r) ranks.push_back({static_cast<int>(r), &recordings[r]});
  const virtual_time::VirtualTimes times = virtual_time::resolve(ranks, virtual_time::TimeModel(test::tiny_profile()));
  ByHand result{.step_ns = times.end_ns, .estimate = {}};
  for (std::size_t r = 0; r < recordings.size(); ++r) {
    measure_time(result.estimate.ranks.emplace_back(), recordings[r], times.ranks[r], times.end_ns);
  }
  add_up(result.estimate, times.end_ns);
  return result;
}

train::PipelineSchedule schedule_of(const char* name, std::int64_t ranks, std::int64_t stages, std::int64_t batches) {
  return train::make_pipeline_schedule(
      {.schedule = name, .ranks = ranks, .stages_per_rank = stages, .micro_batches = batches});
}

TEST(PipelineInVirtualTime, TakesAsLongAsItsScheduleSays) {
  const std::pair<const char*, std::int64_t> schedules[] = {{"gpipe", 1},
                                                            {"1f1b", 1},
                                                            {"looped_bfs", 2},
                                                            {"interleaved_1f1b", 2},
                                                            {"interleaved_1f1b", 3},
                                                            {"interleaved_zero_bubble", 2},
                                                            {"zbv_zero_bubble", 2}};
  for (const auto& [name, stages] : schedules) {
    for (const std::int64_t ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} of {} x {}", name, ranks, stages));
      const train::PipelineSchedule schedule = schedule_of(name, ranks, stages, 8);
      const train::PipelineFigures figures = train::pipeline_figures(schedule);
      const ByHand by_hand = run_by_hand(schedule);
      EXPECT_EQ(by_hand.step_ns, figures.makespan * kUnit);
      for (std::size_t rank = 0; rank < figures.busy.size(); ++rank) {
        const StageEstimate& stage = by_hand.estimate.ranks[rank];
        EXPECT_EQ(stage.compute_ns, figures.busy[rank] * kUnit);
        EXPECT_EQ(stage.bubble_ns, by_hand.step_ns - stage.compute_ns);
        EXPECT_EQ(stage.exposed_message_ns, 0);
      }
      EXPECT_NEAR(by_hand.estimate.bubble, figures.bubble, 1e-12);
    }
  }
}

// Of the ideal time: (p - 1) / m, and with v stages a rank (p - 1) / (v m).
TEST(PipelineInVirtualTime, HasTheBubbleOfThePapers) {
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t m : {8, 16}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", p, m));
      const std::int64_t ideal = 3 * m * kUnit;
      EXPECT_EQ(run_by_hand(schedule_of("gpipe", p, 1, m)).step_ns, ideal + ideal * (p - 1) / m);
      EXPECT_EQ(run_by_hand(schedule_of("1f1b", p, 1, m)).step_ns, ideal + ideal * (p - 1) / m);
      EXPECT_EQ(run_by_hand(schedule_of("interleaved_1f1b", p, 2, m)).step_ns, 2 * ideal + ideal * (p - 1) / m);
    }
  }
}

train::TrainSections pipelined(int stages, const std::string& schedule = "") {
  train::TrainSections a = arguments();
  a.parallel.pipeline.pipeline_model_parallel_size = stages;
  a.parallel.pipeline.pipeline_parallel_schedule = schedule;
  a.schedule.micro_batch_size = 1;
  a.schedule.global_batch_size = 4 * kRanks / stages;  // four micro-batches
  return a;
}

void expect_plan_is_run(const train::TrainSections& a) {
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const StepEstimate plan = estimate_step(a, calls, profile());
  const RealRun run = run_fourth_step(a, calls);
  ASSERT_EQ(plan.runs.size(), static_cast<std::size_t>(a.parallel.pipeline.pipeline_model_parallel_size));
  for (const PlannedRun& rank : plan.runs) {
    SCOPED_TRACE(fmt::format("rank {}", rank.rank));
    expect_same_events(rank.recording, run.recordings[static_cast<std::size_t>(rank.rank)]);
  }
  EXPECT_EQ(end_ns(run), plan.time.step_ns);
  EXPECT_EQ(plan.run().rank, plan.pipeline->ranks[plan.shown].rank);
  EXPECT_EQ(plan.memory.peak_reserved_bytes, plan.pipeline->ranks[plan.shown].peak_reserved_bytes);
}

TEST(PipelinePlan, IsTheRunOnEveryStage) {
  for (const char* schedule : {"1F1B", "GPipe"}) {
    SCOPED_TRACE(schedule);
    expect_plan_is_run(pipelined(2, schedule));
  }
  expect_plan_is_run(pipelined(4));
}

TEST(PipelinePlan, IsTheRunWithSeveralStagesARank) {
  for (const char* schedule : {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble", "DualPipeV"}) {
    SCOPED_TRACE(schedule);
    train::TrainSections a = pipelined(2, schedule);
    a.parallel.pipeline.num_virtual_stages_per_pipeline_rank = 2;
    expect_plan_is_run(a);
  }
}

// Most of the micro-batches are not recorded.
TEST(PipelinePlan, IsTheRunWithManyMicroBatches) {
  for (const auto& [stages, schedule, chunks] :
       {std::tuple{2, "1F1B", 0}, {4, "1F1B", 0}, {2, "Interleaved1F1B", 2}, {2, "GPipe", 0}}) {
    SCOPED_TRACE(fmt::format("{} x {} {}", stages, chunks, schedule));
    train::TrainSections a = pipelined(stages, schedule);
    a.parallel.pipeline.num_virtual_stages_per_pipeline_rank = chunks;
    a.schedule.global_batch_size = 16 * kRanks / stages;
    a.data.seq_length = 16;
    const train::PretrainCallbacks calls = cli::hub_callbacks(a);
    const train::TrainingInputs inputs = train::read_inputs(a, calls);
    const auto few = few_micro_batches(a, calls, inputs, nullptr);
    EXPECT_EQ(few.has_value(), std::string_view(schedule) != "GPipe") << "GPipe repeats nothing";
    if (few) {
      EXPECT_LT(few->inputs.pipeline->schedule.micro_batches, 16);
      for (const PlannedRun& rank : estimate_step(few->arguments, calls, profile()).runs) {
        const auto place = static_cast<std::size_t>(rank.rank / (kRanks / stages));
        EXPECT_TRUE(with_repeats(rank.recording, few->parts[place])) << "rank " << rank.rank;
      }
    }
    expect_plan_is_run(a);
  }
}

// The two records of the part have to be equal.
TEST(PipelinePlan, RecordsTheWholeStepWhereAPartOfItDiffers) {
  const train::TrainSections a = pipelined(2);
  const device::Recording recording = estimate_step(a, cli::hub_callbacks(a), profile()).run().recording;
  const SteadyPart start{.begin = 2, .end = 4, .times = 3, .micro_batches = 1};
  EXPECT_FALSE(with_repeats(recording, start)) << "the first backward is in one of them";
}

TEST(PipelinePlan, SaysWhatEachRankHoldsNeedsAndWaitsFor) {
  const train::TrainSections a = pipelined(2);
  const StepEstimate plan = estimate_step(a, cli::hub_callbacks(a), profile());
  const StageEstimate& first = plan.pipeline->ranks[0];
  const StageEstimate& last = plan.pipeline->ranks[1];
  EXPECT_EQ(first.in_flight, 2);
  EXPECT_EQ(last.in_flight, 1);
  EXPECT_EQ(first.parameters + last.parameters, plan.parameters);
  EXPECT_GT(first.bubble_ns, 0);
  EXPECT_GT(plan.pipeline->bubble, 0);
  EXPECT_THAT(to_text(plan), AllOf(HasSubstr("\npipeline 1F1B: bubble "),
                                   HasSubstr("stage 0: embedding, layers 0 to 3\n"), HasSubstr("stage 1: layers ")));
  const nlohmann::ordered_json json = to_json(plan);
  ASSERT_EQ(json["pipeline"]["ranks"].size(), 2U);
  EXPECT_EQ(json["pipeline"]["ranks"][1]["rank"], 2);
  const std::string trace = to_perfetto(plan);
  for (const char* part : {"rank 0: virtual time on", "rank 2: virtual time on", "receive_previous"}) {
    EXPECT_TRUE(trace.find(part) != std::string::npos) << part;
  }
}

// A vocabulary that costs as much as layers: the stage of the output layer gets fewer.
TEST(PipelineSplitByCost, GivesTheSlowStagesFewerLayers) {
  train::TrainSections a = pipelined(2);
  a.model.model_config = test::write_file(
      test::fresh_folder() / "model.yaml",
      "model_type: llama\nvocab_size: 262144\nhidden_size: 1024\nintermediate_size: 4096\nnum_hidden_layers: 16\n"
      "num_attention_heads: 16\nnum_key_value_heads: 16\nmax_position_embeddings: 4096\nrms_norm_eps: 1.0e-6\n"
      "tie_word_embeddings: false\n");
  a.data.seq_length = 2048;
  a.schedule.global_batch_size = 16;
  a.data.held_out_fraction = 0;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  EXPECT_FALSE(choose_split(a, calls, profile())) << "not asked for";
  a.parallel.pipeline.pipeline_split = train::PipelineSplit::kAuto;
  const ChosenSplit split = choose_split(a, calls, profile()).value();
  const TriedSplit& chosen = split.tried[split.chosen];
  const TriedSplit& equal = split.tried.front();
  EXPECT_THAT(equal.layers, ::testing::ElementsAre(8, 8));
  EXPECT_GT(chosen.layers.front(), chosen.layers.back());
  EXPECT_LT(chosen.step_ns, equal.step_ns);
  apply(split, a.parallel.pipeline);
  const StepEstimate plan = estimate_step(a, calls, profile());
  EXPECT_LT(plan.pipeline->ranks[0].compute_ns, 5 * plan.pipeline->ranks[1].compute_ns / 4);
  EXPECT_LT(plan.pipeline->ranks[1].compute_ns, 5 * plan.pipeline->ranks[0].compute_ns / 4);
  EXPECT_THAT(to_text(split), HasSubstr("   8,8: step "));
}

TEST(PipelineSplitByCost, KeepsWithinMemory) {
  train::TrainSections a = pipelined(2);
  a.parallel.pipeline.pipeline_split = train::PipelineSplit::kAuto;
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const ChosenSplit roomy = choose_split(a, calls, profile()).value();
  for (const TriedSplit& tried : roomy.tried) EXPECT_TRUE(tried.fits);
  const ChosenSplit tight = choose_split(a, calls, profile(32 * kMiB)).value();
  for (const TriedSplit& tried : tight.tried) {
    EXPECT_FALSE(tried.fits);
    EXPECT_GE(tried.peak_reserved_bytes, tight.tried[tight.chosen].peak_reserved_bytes);
  }
}

TEST(PipelineSplitByCost, RefusesASecondWord) {
  train::TrainSections a = pipelined(2);
  a.parallel.pipeline.pipeline_split = train::PipelineSplit::kAuto;
  a.parallel.pipeline.num_layer_list = "3,5";
  const auto said = [&] {
    return test::message_of<ConfigError>([&] { choose_split(a, cli::hub_callbacks(a), profile()); });
  };
  EXPECT_EQ(said(), "--pipeline-split auto and --num-layer-list both say which layers a stage has; remove one of them");
  a.parallel.pipeline = {.pipeline_split = train::PipelineSplit::kAuto};
  EXPECT_EQ(said(), "--pipeline-split is auto, and --pipeline-model-parallel-size is 1; give 2 or more, or remove it");
}

TEST(PipelinePlan, SaysOnWhichRankMemoryEnds) {
  const train::TrainSections a = pipelined(2);
  const std::string said =
      test::message_of<OutOfMemoryError>([&] { estimate_step(a, cli::hub_callbacks(a), profile(6 * kMiB)); });
  EXPECT_THAT(said, HasSubstr(", on rank "));
}

}  // namespace
}  // namespace loom::plan
