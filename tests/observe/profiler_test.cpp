// Promise: --profile collects the steps and ranks it is asked for, at the level it is asked for, into traces that
//          viewers read, and changes nothing in the training.
// World:   tests/observe/tiny_run.h.
#include "engine/observe/profiler.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/observe/tiny_run.h"

namespace loom::observe {
namespace {

using test::TracedArrow;
using test::TracedSlice;
using test::Words;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

class Profile : public test::TinyRun {
 protected:
  // Steps 1 and 2 of rank 0, unless `more` says otherwise.
  void profile(Words more) {
    const auto add = [&](const Words& flag) {
      if (std::ranges::find(more, flag.front()) == more.end()) more.insert(more.end(), flag.begin(), flag.end());
    };
    for (const Words& flag : {Words{"--profile"}, {"--profile-step-start", "1"}, {"--profile-step-end", "3"}})
      add(flag);
    train(more);
  }
  Words files() const {
    Words names;
    if (!std::filesystem::exists(folder / "profile")) return names;
    for (const auto& file : std::filesystem::directory_iterator(folder / "profile")) {
      names.push_back(file.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  test::TraceReader trace(const std::string& file = "rank0_steps1-2.json") const {
    return test::TraceReader(text(file));
  }
  nlohmann::json summary() const { return nlohmann::json::parse(text("rank0_steps1-2.summary.json")); }

  // Loss and gradient norm of every step, as they are written.
  Words curve() const {
    Words steps;
    for (const nlohmann::json& step : metrics()) {
      steps.push_back(step.at("loss").dump() + " " + step.at("grad_norm").dump());
    }
    return steps;
  }
};

Words names_of(const std::vector<TracedSlice>& slices) {
  Words names;
  for (const TracedSlice& slice : slices) names.push_back(slice.name);
  return names;
}

// --- What is collected

TEST_F(Profile, IsWrittenForTheStepsAndRanksAskedFor) {
  profile({"--profile-ranks", "0", "1"});
  EXPECT_THAT(files(), ElementsAre("rank0_steps1-2.json", "rank0_steps1-2.summary.json", "rank1_steps1-2.json",
                                   "rank1_steps1-2.summary.json"));
  EXPECT_EQ(trace("rank1_steps1-2.json").processes.at(0), "rank 1: wall time");
}

TEST_F(Profile, OfAnotherRankLeavesRankZeroAlone) {
  profile({"--profile-ranks", "1"});
  EXPECT_THAT(files(), ElementsAre("rank1_steps1-2.json", "rank1_steps1-2.summary.json"));
}

TEST_F(Profile, EndsWithTheRun) {
  profile({"--profile-step-end", "100"});
  EXPECT_THAT(files(), ElementsAre("rank0_steps1-3.json", "rank0_steps1-3.summary.json"));
}

TEST_F(Profile, IsNotWrittenWithoutTheFlagOrBeyondTheRun) {
  train({});
  EXPECT_THAT(files(), IsEmpty());
  profile({"--profile-step-start", "4", "--profile-step-end", "5"});
  EXPECT_THAT(files(), IsEmpty());
}

TEST(ProfileWarning, SaysWhenTheRunIsTooShort) {
  ProfileOptions asked;
  EXPECT_EQ(profile_warning(asked, 5), std::nullopt);
  asked.enabled = true;
  EXPECT_EQ(profile_warning(asked, 11), std::nullopt);
  EXPECT_EQ(profile_warning(asked, 10),
            "--profile-step-start is 10, but --train-iters is 10, so no step is profiled; use a start below 10");
}

TEST_F(Profile, HasItsStepsAndTheirPhasesAndNothingBetween) {
  profile({"--profile-level", "level1"});
  const auto phases = trace().lane(0, "phases");
  EXPECT_THAT(names_of(phases),
              ElementsAre("step 1", "forward", "backward", "optimizer", "step 2", "forward", "backward", "optimizer"));
  for (const TracedSlice& slice : trace().lane(0, "compute")) {
    const auto in_a_step = [&](const TracedSlice& step) {
      return step.category == "step" && step.start_ns <= slice.start_ns && slice.end_ns <= step.end_ns;
    };
    EXPECT_TRUE(std::ranges::any_of(phases, in_a_step)) << slice.name;
  }
}

// --- Well-formed

TEST_F(Profile, HasLanesInOrderAndArrowsThatBind) {
  profile({"--profile-level", "level2", "--profile-with-cpu", "--profile-device", "h200"});
  const test::TraceReader read = trace();
  read.expect_lanes_in_order(/*nested=*/true);
  EXPECT_THAT(read.loose_ends, IsEmpty());
  EXPECT_THAT(read.arrows, Contains(AllOf(Field(&TracedArrow::process, 0), Field(&TracedArrow::from, "all_gather body"),
                                          Field(&TracedArrow::to_lane, "compute"))));
}

// --- Levels

TEST_F(Profile, LevelZeroHasCollectivesAndJoinsKernels) {
  profile({});
  const test::TraceReader read = trace();
  EXPECT_THAT(read.lane_names(0), IsSupersetOf({"phases", "compute", "gather", "reduce_scatter"}));
  EXPECT_THAT(read.lane_names(0), Not(Contains("host")));
  EXPECT_THAT(names_of(read.lane(0, "gather")),
              IsSupersetOf({"all_gather body", "all_gather head", "all_gather embed"}));
  for (const TracedSlice& slice : read.lane(0, "compute")) EXPECT_THAT(slice.name, HasSubstr(" kernel"));
  EXPECT_TRUE(read.counters.empty());
  EXPECT_THAT(read.loose_ends, IsEmpty());
  for (const TracedSlice& slice : read.slices(0)) {
    EXPECT_NE(slice.category, "wait");
    if (slice.category != "collective") continue;
    EXPECT_EQ(slice.args.at("ranks"), "0, 1") << slice.name;
  }
}

TEST_F(Profile, LevelOneHasEachKernelWithoutShapes) {
  profile({"--profile-level", "level1"});
  const test::TraceReader read = trace();
  EXPECT_THAT(names_of(read.lane(0, "compute")), IsSupersetOf({"linear", "cross_entropy"}));
  for (const TracedSlice& slice : read.slices(0)) EXPECT_FALSE(slice.args.contains("m")) << slice.name;
  EXPECT_TRUE(read.counters.empty());
}

TEST_F(Profile, LevelTwoHasShapesWaitsAndMemory) {
  profile({"--profile-level", "level2"});
  const test::TraceReader read = trace();
  const auto& compute = read.lane(0, "compute");
  const auto linear = std::ranges::find(compute, "linear", &TracedSlice::name);
  ASSERT_NE(linear, compute.end());
  EXPECT_EQ(linear->args.at("m"), 1);
  EXPECT_EQ(linear->args.at("n"), test::kTinyWidth);
  EXPECT_EQ(linear->args.at("k"), test::kTinyWidth);
  EXPECT_GT(read.peak(0, "memory: unsharded"), 0);
  EXPECT_GE(read.peak(0, "memory: reserved"), read.peak(0, "memory: allocated"));
}

TEST_F(Profile, SwitchesBringMemoryShapesAndTheHostAtLowerLevels) {
  profile({"--profile-level", "level1", "--profile-with-memory", "--profile-record-shapes", "--profile-with-cpu"});
  const test::TraceReader read = trace();
  EXPECT_FALSE(read.counters.empty());
  EXPECT_THAT(read.lane_names(0), Contains("host"));
  const auto has_shape = [](const TracedSlice& slice) { return slice.args.contains("m"); };
  EXPECT_TRUE(std::ranges::any_of(read.lane(0, "compute"), has_shape));
}

// --- Call sites

TEST_F(Profile, CallSitesAreTheModulesOfForwardAlsoInBackward) {
  profile({"--profile-level", "level1", "--profile-with-stack"});
  Words forward;
  Words backward;
  for (const TracedSlice& slice : trace().lane(0, "compute")) {
    const std::string site = slice.args.value("call_site", "");
    if (slice.name == "linear") forward.push_back(site);
    if (slice.name != "linear" && slice.name.starts_with("linear")) backward.push_back(site);
  }
  const Words sites{"TinyLm > body (Linear)", "TinyLm > head (Linear)"};
  EXPECT_THAT(forward, IsSupersetOf(sites));
  EXPECT_THAT(backward, IsSupersetOf(sites));
  EXPECT_THAT(trace().lane(0, "gather"), Contains(Field(&TracedSlice::args, Contains("TinyLm > body (Linear)"))));
}

TEST_F(Profile, WithoutStackThereAreNoCallSites) {
  profile({"--profile-level", "level2"});
  EXPECT_THAT(text("rank0_steps1-2.json"), Not(HasSubstr("call_site")));
}

// --- Virtual time

TEST_F(Profile, VirtualTimeIsASecondProcessAndTheSameEveryRun) {
  const Words asked{"--profile-level", "level2", "--profile-device", "h200"};
  profile(asked);
  const auto virtual_slices = [](const test::TraceReader& read) {
    Words slices;
    for (const TracedSlice& s : read.slices(1)) slices.push_back(fmt::format("{} {} {}", s.name, s.start_ns, s.end_ns));
    return slices;
  };
  const test::TraceReader first = trace();
  EXPECT_EQ(first.processes,
            (std::map<int, std::string>{{0, "rank 0: wall time"}, {1, "rank 0: virtual time on h200"}}));
  EXPECT_EQ(first.peak(0, "memory: allocated"), first.peak(1, "memory: allocated"));
  profile(asked);
  EXPECT_EQ(virtual_slices(trace()), virtual_slices(first));
  EXPECT_THAT(virtual_slices(first), Not(IsEmpty()));
}

TEST_F(Profile, AnUnknownDeviceIsRefused) {
  const std::string message = test::message_of<ConfigError>([&] { profile({"--profile-device", "h20"}); });
  EXPECT_THAT(message, StartsWith("--profile-device is h20, neither a file nor a profile in "));
  EXPECT_THAT(message, HasSubstr("did you mean h200? "));
}

// --- Summary

TEST_F(Profile, TheSummaryCountsWhatTheTraceHas) {
  profile({"--profile-level", "level1", "--profile-device", "h200"});
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> in_trace;  // count, ns
  for (const TracedSlice& slice : trace().slices(0)) {
    auto& [count, ns] = in_trace[slice.name.substr(0, slice.name.find(' '))];
    ++count;
    ns += slice.end_ns - slice.start_ns;
  }
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> in_summary;
  const nlohmann::json told = summary();
  for (const char* table : {"kernels", "collectives"}) {
    ASSERT_FALSE(told.at(table).empty()) << table;
    for (const auto& row : told.at(table)) {
      if (row.at("stream") == "host") continue;
      auto& [count, ns] = in_summary[row.at("name")];
      count += row.at("count").get<std::int64_t>();
      ns += row.at("wall_ns").get<std::int64_t>();
      EXPECT_GT(row.at("virtual_ns"), 0) << row;
    }
  }
  EXPECT_EQ(in_summary, in_trace);
  EXPECT_EQ(told.at("collectives").at(0).at("members"), 2);
  EXPECT_THAT(told.at("level"), StartsWith("level1: "));
}

// --- Cost

TEST_F(Profile, DoesNotChangeTheBits) {
  train({});
  const Words plain = curve();
  profile({"--profile-level", "level2", "--profile-with-cpu", "--profile-with-stack", "--profile-ranks", "0", "1"});
  EXPECT_EQ(curve(), plain);
  ASSERT_EQ(plain.size(), 4u);
}

}  // namespace
}  // namespace loom::observe
