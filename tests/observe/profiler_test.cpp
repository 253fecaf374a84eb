// Promise: --profile collects the steps and ranks it is asked for, at the level it is asked for, into traces that viewers
// read, and changes nothing in the training.
// World:   2 ranks as threads, threaded streams; a model of an embedding and two linear layers, each a group.
#include "engine/observe/profiler.h"

#include <gmock/gmock.h>
#include <sstream>

#include "engine/cli/pretrain.h"
#include "engine/core/error.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "tests/support/files.h"
#include "tests/support/trace_reader.h"

namespace loom::observe {
namespace {

using test::TracedArrow;
using test::TracedSlice;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

constexpr std::int64_t kVocab = 8;
constexpr std::int64_t kWidth = 16;

class TinyLm : public nn::Module {
 public:
  TinyLm() {
    register_module("embed", std::make_shared<nn::Embedding>(kVocab, kWidth, 0.5));
    register_module("body", std::make_shared<nn::Linear>(kWidth, kWidth, false, 0.5));
    register_module("head", std::make_shared<nn::Linear>(kWidth, kVocab, false, 0.5));
  }
  std::string_view type_name() const override { return "TinyLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    return (*find("head"))((*find("body"))((*find("embed"))(args.tensor(0))));
  }
};

data::Batch batch_of(std::span<const std::int64_t> samples) {
  const Shape shape{static_cast<std::int64_t>(samples.size())};
  const Tensor ids = Tensor::host(shape, DType::kI64, "ids");
  const Tensor targets = Tensor::host(shape, DType::kI64, "targets");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ids.data<std::int64_t>()[i] = samples[i] % kVocab;
    targets.data<std::int64_t>()[i] = (3 * samples[i] + 1) % kVocab;
  }
  return {{{"ids", ids}, {"targets", targets}}};
}

data::ForwardResult forward_step(data::DataIterator& data, nn::Module& model) {
  const data::Batch batch = data.next();
  return {model(batch["ids"]),
          [targets = batch["targets"]](const nn::Value& logits) { return ops::cross_entropy(logits, targets); }};
}

const train::PretrainCallbacks kCallbacks{
    [](const train::TrainArguments&) {
      return data::DataLoaders{.train = batch_of, .valid = batch_of, .about = "numbers"};
    },
    [](const train::TrainArguments&) { return std::make_shared<TinyLm>(); }, forward_step};

class Profile : public ::testing::Test {
 protected:
  Profile() {
    test::write_file(folder / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, body, head]\n");
  }

  // Four steps, evaluated after each.
  void train(const Words& more) {
    Words words{"tiny", "--seq-length", "1", "--global-batch-size", "2", "--lr", "0.1", "--train-iters", "4"};
    words.insert(words.end(), {"--eval-interval", "1", "--eval-iters", "1", "--nproc-per-node", "2"});
    words.insert(words.end(), {"--use-torch-fsdp2", "--fsdp2-config-path", (folder / "fsdp2.yaml").string()});
    words.insert(words.end(), {"--metrics-path", (folder / "metrics.jsonl").string()});
    words.insert(words.end(), {"--profile-save-path", (folder / "profile").string()});
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    const launch::LaunchContext context{.cores = 2, .mpi_ranks = 0, .mpi_local_ranks = 0};
    std::ostringstream out;
    cli::pretrain(std::get<cli::ProgramArguments>(
                      cli::parse_program_arguments(static_cast<int>(argv.size()), argv.data(), {}, context)),
                  kCallbacks, out);
  }
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
  std::string text(const std::string& file) const { return test::read_file(folder / "profile" / file); }
  test::TraceReader trace(const std::string& file = "rank0_steps1-2.json") const {
    return test::TraceReader(text(file));
  }
  nlohmann::json summary() const { return nlohmann::json::parse(text("rank0_steps1-2.summary.json")); }

  // Loss and gradient norm of every step, as they are written.
  Words curve() const {
    Words steps;
    std::istringstream lines(test::read_file(folder / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      steps.push_back(json.at("loss").dump() + " " + json.at("grad_norm").dump());
    }
    return steps;
  }

  const std::filesystem::path folder = test::fresh_folder();
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
  train({"--profile-step-start", "1"});
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
  EXPECT_EQ(linear->args.at("n"), kWidth);
  EXPECT_EQ(linear->args.at("k"), kWidth);
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
