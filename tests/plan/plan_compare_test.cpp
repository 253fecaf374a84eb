// Promise: --what-if scales figures of the device for the plan and shows it beside the device as it is; --compare plans
//          with two files and shows both; --tokens gives the cost of a training. All of it is in --json too.
// World:   shardloom plan of the quick start's model on 4 H200s; plans made by hand.
#include "engine/plan/plan_compare.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/cli/exit_status.h"
#include "engine/cli/program.h"
#include "engine/core/wrapped.h"
#include "engine/plan/plan_output.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

struct Planned {
  int status;
  std::string text;
  std::string error;

  ordered_json json() const { return ordered_json::parse(text); }
};

Planned planned(const Words& more, const char* file = "full_shard") {
  Words words{"--model-config", kSource / "configs/models/quickstart.yaml",
              "--device",       "h200",
              "--world-size",   "4",
              "--seq-length",   "64"};
  if (file != nullptr) {
    words.insert(words.end(), {"--use-torch-fsdp2", "--fsdp2-config-path",
                               kSource / "configs/fsdp2" / (std::string(file) + ".yaml")});
  }
  words.insert(words.end(), more.begin(), more.end());
  std::vector<const char*> argv{"shardloom", "plan"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int status = cli::program_main(static_cast<int>(argv.size()), argv.data());
  return {status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

void expect_columns(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), kTextColumns) << line;
}

const ordered_json& figure_of(const ordered_json& figures, const std::string& part, const std::string& figure) {
  for (const ordered_json& row : figures) {
    if (row.at("part") == part && row.at("figure") == figure) return row;
  }
  throw std::runtime_error("no figure '" + figure + "' in '" + part + "'");
}

TEST(WhatIfPlan, BeginsWithWhatItScalesAndTheDeviceAsItIs) {
  const Planned plan = planned({"--what-if", "links=0.5,matrix=2"});
  EXPECT_EQ(plan.status, 0) << plan.error;
  expect_columns(plan.text);
  EXPECT_THAT(plan.text, StartsWith("what if links x 0.5 (bandwidth of every level of links)\n"
                                    "what if matrix x 2 (peak of matrix products and attention, in every dtype)\n"));
  EXPECT_THAT(plan.text,
              ContainsRegex("\n +as it is +what if +difference +ratio\nstep\n  step, m?s +[0-9.]+ +[0-9.]+ "));
  EXPECT_THAT(plan.text, AllOf(HasSubstr("\n  tokens/s per device "), HasSubstr("\n  peak reserved, "),
                               HasSubstr("\n\nQwen2ForCausalLM of ")));
}

TEST(WhatIfPlan, ItsJsonHasBothPlansFigures) {
  const ordered_json as_it_is = planned({"--json", "-"}).json();
  const ordered_json json = planned({"--what-if", "dispatch=3", "--json", "-"}).json();
  const ordered_json& what_if = json.at("what_if");
  EXPECT_EQ(what_if.at("scaled"), ordered_json::parse(R"([{"figure": "dispatch", "factor": 3.0,
    "about": "time of the host for every kernel, collective and wait"}])"));
  const ordered_json& step = figure_of(what_if.at("figures"), "step", "step");
  EXPECT_EQ(step.at("unit"), "ns");
  EXPECT_EQ(step.at("a"), as_it_is.at("/time/step_ns"_json_pointer));
  EXPECT_EQ(step.at("b"), json.at("/time/step_ns"_json_pointer));
  EXPECT_GT(step.at("b"), step.at("a"));
  EXPECT_DOUBLE_EQ(step.at("ratio").get<double>(), step.at("b").get<double>() / step.at("a").get<double>());
  EXPECT_EQ(figure_of(what_if.at("figures"), "memory", "peak reserved").at("difference"), 0);
}

TEST(WhatIfPlan, AFactorOfOneChangesNothing) {
  const ordered_json json = planned({"--what-if", "links=1", "--json", "-"}).json();
  for (const ordered_json& row : json.at("/what_if/figures"_json_pointer)) EXPECT_EQ(row.at("a"), row.at("b")) << row;
}

TEST(WhatIfPlan, ASearchIsOfTheScaledDevice) {
  EXPECT_THAT(planned({"--what-if", "memory=0.5", "--fit", "micro-batch"}).text,
              HasSubstr("what if memory x 0.5 (memory of the device)\n"));
  const ordered_json json = planned({"--what-if", "memory=0.5", "--fit", "micro-batch", "--json", "-"}).json();
  EXPECT_EQ(json.at("/memory/capacity_bytes"_json_pointer), 150754820096 / 2 - 1610612736);
  EXPECT_TRUE(json.at("/what_if/figures"_json_pointer).empty());
}

TEST(WhatIfPlan, ContradictionsAreRefused) {
  EXPECT_THAT(planned({"--what-if", "memory=2", "--device-memory", "1000"}).error,
              HasSubstr("--what-if scales memory, but --device-memory 1000 says it; remove one of them"));
  EXPECT_THAT(planned({"--what-if", "links=2", "links=3"}).error,
              HasSubstr("--what-if scales links twice; give one factor"));
  EXPECT_THAT(planned({"--what-if", "lnks=2"}).error, HasSubstr("did you mean links?"));
}

TEST(TrainingCost, CountsWholeStepsDeviceHoursAndThePrice) {
  StepEstimate plan;
  plan.world = 8;
  plan.throughput.tokens = 1000;
  plan.time.step_ns = 3'600'000'000'000;  // an hour
  const TrainingCost cost = training_cost(plan, {.tokens = 23'001, .price_per_device_hour = 2.5});
  EXPECT_EQ(cost.steps, 24);
  EXPECT_EQ(cost.days, 1);
  EXPECT_EQ(cost.device_hours, 192);
  EXPECT_EQ(cost.price, 480);
  EXPECT_EQ(to_text(cost), "23001 tokens: 24 steps, 1.00 days, 192.0 device hours, 480.00 at 2.5 each\n");
  EXPECT_EQ(to_text(training_cost(plan, {.tokens = 1, .price_per_device_hour = {}})),
            "1 tokens: 1 step, 0.04 days, 8.0 device hours\n");
  EXPECT_THAT(to_text(training_cost(plan, {.tokens = 3e11, .price_per_device_hour = {}})),
              StartsWith("300B tokens: 300000000 steps"));
}

TEST(TrainingCost, IsOnThePlanAndOnEveryRowOfASweep) {
  const Planned text = planned({"--tokens", "1T", "--price-per-device-hour", "2.5"});
  EXPECT_THAT(text.text, ContainsRegex("\n1T tokens: [0-9]+ steps, [0-9.]+ days, [0-9.]+ device hours, "
                                       "[0-9.]+ at 2.5 each\n"));
  const ordered_json json = planned({"--tokens", "1e12", "--json", "-"}).json();
  const ordered_json& training = json.at("training");
  EXPECT_EQ(training.at("tokens"), 1e12);
  EXPECT_FALSE(training.contains("price"));
  const double hours =
      training.at("steps").get<double>() * json.at("/time/step_ns"_json_pointer).get<double>() / 3600e9;
  EXPECT_NEAR(training.at("days").get<double>(), hours / 24, 1e-6 * hours);
  EXPECT_NEAR(training.at("device_hours").get<double>(), hours * 4, 1e-6 * hours);
  Words words{"--tokens", "1e12", "--micro-batch-size", "1", "--sweep"};
  const Planned sweep = planned(words);
  expect_columns(sweep.text);
  EXPECT_THAT(sweep.text, ContainsRegex("MFU % +days  change\n"));
  words.insert(words.end(), {"--json", "-"});
  for (const ordered_json& row : planned(words).json().at("sweep")) {
    EXPECT_TRUE(row.contains("training"));
  }
}

TEST(TrainingCost, ImpossibleFiguresAreRefused) {
  EXPECT_THAT(planned({"--tokens", "0"}).error,
              HasSubstr("--tokens is 0; use a number of tokens from 1 to 1e18, such as 1e12, 300B or 15T"));
  EXPECT_THAT(planned({"--tokens", "3X"}).error, HasSubstr("--tokens is 3X; use a number"));
  EXPECT_THAT(planned({"--tokens", "1e19"}).error, HasSubstr("--tokens is 1e19; use a number"));
  EXPECT_THAT(planned({"--tokens", "1", "--price-per-device-hour", "0"}).error,
              HasSubstr("--price-per-device-hour is 0; use a price above 0, at most 1e6"));
  EXPECT_THAT(planned({"--price-per-device-hour", "2"}).error,
              HasSubstr("--price-per-device-hour is 2, but no training is priced; add --tokens, or remove it"));
}

TEST(ComparedPlans, StandSideBySide) {
  const Planned plan = planned({"--compare", "full_shard", "zero2"}, nullptr);
  EXPECT_EQ(plan.status, 0) << plan.error;
  expect_columns(plan.text);
  EXPECT_THAT(plan.text, StartsWith("A: full_shard: Qwen2ForCausalLM on 4 x h200, "));
  EXPECT_THAT(plan.text,
              AllOf(HasSubstr("\nB: zero2: "), ContainsRegex("\n +A +B +difference +ratio\nstep\n"),
                    HasSubstr("\nmemory in forward\n"), HasSubstr("\n  unsharded, "), HasSubstr("\ntime\n  compute, "),
                    HasSubstr("\nall_gather over 4 ranks, node\n  count ")));
  EXPECT_THAT(plan.text, ContainsRegex("\nthe order of events differs, first at event [0-9]+: .* and .*\n"));
}

TEST(ComparedPlans, TheirJsonHasThePlansTheFiguresAndTheOrder) {
  const ordered_json json = planned({"--compare", "full_shard", "zero2", "--json", "-"}, nullptr).json();
  ordered_json a = json.at("a");
  EXPECT_EQ(a.at("file"), "full_shard");
  a.erase("file");
  EXPECT_EQ(a, planned({"--json", "-"}, "full_shard").json());
  const ordered_json& gathers = figure_of(json.at("figures"), "all_gather over 4 ranks, node", "count");
  EXPECT_GT(gathers.at("a"), gathers.at("b"));  // zero2 keeps parameters gathered
  EXPECT_FALSE(json.at("/order/same"_json_pointer).get<bool>());
  EXPECT_NE(json.at("/order/a"_json_pointer), json.at("/order/b"_json_pointer));
}

TEST(ComparedPlans, OfOneFileAreTheSame) {
  const Planned plan = planned({"--compare", "full_shard", "full_shard"}, nullptr);
  EXPECT_THAT(plan.text, HasSubstr("\nthe order of events is the same\n"));
  const ordered_json json = planned({"--compare", "full_shard", "full_shard", "--json", "-"}, nullptr).json();
  EXPECT_EQ(json.at("order"), ordered_json::parse(R"({"same": true})"));
  for (const ordered_json& row : json.at("figures")) EXPECT_EQ(row.at("difference"), 0) << row;
}

TEST(ComparedPlans, OneThatDoesNotFitSaysWhy) {
  const Planned plan = planned({"--compare", "full_shard", "zero2", "--device-memory", "80"}, nullptr);
  EXPECT_EQ(plan.status, cli::kExitDoesNotFit);
  EXPECT_THAT(plan.text, AllOf(HasSubstr(": DOES NOT FIT\n"), HasSubstr(": out of memory in ")));
}

TEST(ComparedPlans, WrongCommandLinesAreRefused) {
  EXPECT_THAT(planned({"--compare", "full_shard"}, nullptr).error,
              HasSubstr("--compare has 1 file; give two, A and B"));
  EXPECT_THAT(
      planned({"--compare", "full_shard", "zero2"}, "hybrid").error,
      HasSubstr("--compare shows two plans, each with its own file, and --fsdp2-config-path is of one plan; remove "
                "one of them"));
  EXPECT_THAT(planned({"--compare", "full_shard", "zero2", "--sweep"}, nullptr).error,
              HasSubstr("--sweep is of one plan"));
  EXPECT_THAT(planned({"--compare", "full_shard", "nothing"}, nullptr).error, HasSubstr("nothing"));
}

}  // namespace
}  // namespace loom::plan
