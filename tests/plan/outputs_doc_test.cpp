// Promise: docs/outputs.md has every key of metrics.jsonl and of a plan's JSON and every exit status, docs/logs.md
//          every tag of TensorBoard's scalars, and no other.
// World:   this checkout; figures made by hand, so that the keys that are written sometimes are written too.
#include <algorithm>
#include <csignal>
#include <gmock/gmock.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "engine/cli/exit_status.h"
#include "engine/device/memory.h"
#include "engine/explain/snapshot_explanation.h"
#include "engine/explain/trace_explanation.h"
#include "engine/formats/events/event_file.h"
#include "engine/log/metrics.h"
#include "engine/log/tensorboard.h"
#include "engine/plan/adaptive.h"
#include "engine/plan/config_file.h"
#include "engine/plan/pipeline_split.h"
#include "engine/plan/plan_compare.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/smart_swap.h"
#include "sharding/memory.h"
#include "tests/support/files.h"

namespace loom::plan {
namespace {

using nlohmann::ordered_json;
using ::testing::IsEmpty;
using Names = std::set<std::string>;

// The first cells of the tables below the heading, as far as they are code.
Names documented(const std::string& heading, const std::string& name = "docs/outputs.md") {
  std::istringstream page(test::read_file(std::filesystem::path(LOOM_SOURCE_DIR) / name));
  const std::regex row("\\| `([^`]*)` \\|.*");
  Names names;
  bool inside = false;
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) inside = line == "## " + heading;
    if (inside && std::regex_match(line, match, row)) names.insert(match[1].str());
  }
  return names;
}

// "memory.phases[].phase": the paths of all keys in `json`, which stands at `path`.
void add_keys(const ordered_json& json, const std::string& path, Names& keys) {
  if (json.is_array()) {
    for (const ordered_json& item : json) add_keys(item, path + "[]", keys);
  }
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const std::string below = path.empty() ? key : path + "." + key;
    keys.insert(below);
    add_keys(value, below, keys);
  }
}

Names difference(const Names& of, const Names& without) {
  Names rest;
  std::ranges::set_difference(of, without, std::inserter(rest, rest.end()));
  return rest;
}

void expect_on_the_page(const Names& written, const std::string& heading, const std::string& name = "docs/outputs.md") {
  const Names rows = documented(heading, name);
  EXPECT_THAT(difference(written, rows), IsEmpty()) << "written, but not in " << name << ": add a row for each";
  EXPECT_THAT(difference(rows, written), IsEmpty()) << "in " << name << ", but not written: remove these rows";
}

// A plan with an entry in each of its lists.
StepEstimate full_plan() {
  StepEstimate plan;
  plan.memory.phases.resize(1);
  plan.memory.flushes.resize(1);
  plan.memory.pools.resize(1);
  plan.memory.outside.communicators.resize(1);
  plan.communication.resize(1);
  plan.volume.resize(1);
  plan.time.phases.resize(1);
  plan.swaps.resize(1);
  plan.runs.resize(1);
  plan.pipeline.emplace().ranks.resize(1);
  plan.training = TrainingCost{.goal = {.tokens = 1, .price_per_device_hour = 1}, .price = 1};
  return plan;
}

// A sweep with an entry in each of its lists.
Sweep full_sweep() {
  Sweep sweep;
  sweep.fitting.resize(1);
  sweep.fitting[0].plan = full_plan();
  sweep.pruned.resize(1);
  sweep.best.resize(1);
  sweep.best[0].against = 0;
  sweep.best[0].exposed.resize(1);
  sweep.best[0].differences.resize(1);
  return sweep;
}

// Its keys that no plan has.
Names beside_plans() {
  Names of_sweep, of_plan;
  add_keys(to_json(full_sweep()), "", of_sweep);
  add_keys(to_json(full_plan()), "sweep[]", of_plan);
  return difference(of_sweep, of_plan);
}

// The keys of a comparison that no plan has.
Names of_comparison() {
  const auto named = [] {
    NamedEstimate named{.name = "a.yaml", .checked = {}};
    named.checked.plan = full_plan();
    return named;
  };
  ComparedEstimates compared{.a = named(), .b = named()};
  compared.b.checked.plan.time.step_ns = 2;
  Names keys{"order.event", "order.a", "order.b"};  // of orders that differ: tests/plan/plan_compare_test.cpp
  add_keys(to_json(compared), "", keys);
  for (const char* plan : {"a", "b"}) {
    Names of_plan;
    add_keys(to_json(full_plan()), plan, of_plan);
    keys = difference(keys, of_plan);
  }
  const WhatIfEstimate what_if{.scaled = {{.figure = "links"}},
                               .figures = main_figures(full_plan(), compared.b.checked.plan)};
  keys.insert("what_if");
  add_keys(to_json(what_if), "what_if", keys);
  return keys;
}

TEST(OutputsPage, HasEveryKeyOfMetrics) {
  train::StepMetrics metrics;
  metrics.step = 1;
  for (const device::MemCategory category : sharding::kMemCategories) {
    metrics.peak_memory_bytes.emplace_back(category.name(), 1);
  }
  metrics.peak_memory_bytes.emplace_back("total", 1);  // as the trainer does: tests/cli/program_test.cpp
  metrics.held_out_loss = 2.5;
  metrics.held_out_reports.emplace_back("NAME", 1.5);
  metrics.loss_is_scaled = metrics.skipped = true;
  metrics.expert_tokens = {1, 2};
  for (const char* name : {"NAME", "expert_load_max_over_mean", "dropped_choices"}) {
    metrics.reports.emplace_back(name, 1.5);
  }
  const auto path = test::fresh_folder() / "metrics.jsonl";
  const auto layers = [] { return std::vector<train::LayerNorms>{{"NAME", 1.0, 2.0}}; };
  log::MetricsWriter(path, log::MetricsMode::kNew,
                     {.params_norm = {}, .zeros_in_grad = [] { return 3.0; }, .norms_by_layer = layers})
      .write(metrics);
  Names keys;
  add_keys(ordered_json::parse(test::read_file(path)), "", keys);
  expect_on_the_page(keys, "metrics.jsonl");
}

// A tag and the same vs samples are one row.
TEST(LogsPage, HasEveryTagOfTensorBoard) {
  log::LogOptions options;
  options.tensorboard_dir = test::fresh_folder();
  options.log_throughput = true;
  for (bool* flag : {&options.log_memory_to_tensorboard, &options.log_timers_to_tensorboard,
                     &options.log_world_size_to_tensorboard, &options.log_validation_ppl_to_tensorboard}) {
    *flag = true;
  }
  options.log_interval = 1;
  log::TensorBoard board(options, {.flops_per_rank = [] { return 1.0; },
                                   .figures = {.params_norm = [] { return 1.0; },
                                               .zeros_in_grad = [] { return 2.0; },
                                               .norms_by_layer =
                                                   [] {
                                                     return std::vector<train::LayerNorms>{{"LAYER", 1, 2}};
                                                   }},
                                   .memory = [] { return log::MemoryFigures{}; }});
  train::StepMetrics metrics{.step = 1, .samples_consumed = 8, .samples_skipped = 4, .held_out_loss = 1.0};
  metrics.reports.emplace_back("NAME", 1.5);
  metrics.held_out_reports.emplace_back("NAME", 1.5);
  board.step_done(metrics);
  board.run_done({});
  Names tags;
  Names vs_samples;
  io::read_scalars(board.file(), [&](const io::Scalar& scalar) {
    const std::string tag(scalar.tag);
    const std::size_t end = tag.find(" vs samples");
    (end == std::string::npos ? tags : vs_samples).insert(tag.substr(0, end));
  });
  expect_on_the_page(tags, "TensorBoard", "docs/logs.md");
  const std::string page = test::read_file(std::filesystem::path(LOOM_SOURCE_DIR) / "docs/logs.md");
  for (const std::string& tag : tags) {
    EXPECT_NE(page.find("| `" + tag + (vs_samples.contains(tag) ? "` | yes |" : "` | no |")), std::string::npos) << tag;
  }
}

TEST(OutputsPage, HasEveryKeyOfAPlan) {
  CheckedEstimate checked;
  checked.plan = full_plan();
  checked.out_of_memory = "out of memory in forward";
  checked.remedies.resize(1);
  Names keys;
  add_keys(to_json(checked), "", keys);
  SmartSwap chosen;
  chosen.chosen.resize(1);
  AdaptiveChoice adaptive;
  adaptive.modules.resize(1);
  keys.insert("adaptive_recompute");
  add_keys(to_json(adaptive), "adaptive_recompute", keys);
  ChosenSplit split;
  split.tried.resize(1);
  keys.insert("pipeline_split");
  add_keys(to_json(split), "pipeline_split", keys);
  keys.insert("write_config");
  add_keys(to_json(WrittenConfig{}), "write_config", keys);
  keys.insert("smart_swap");
  add_keys(to_json(chosen), "smart_swap", keys);
  add_keys(to_json(LongestSequence{}), "", keys);
  keys.merge(beside_plans());
  keys.merge(of_comparison());
  expect_on_the_page(keys, "plan --json");
}

// The rows of a sweep are plans; only the keys beside them have rows of their own on the page.
TEST(OutputsPage, HasEveryKeyOfASweep) {
  Names expected = beside_plans();
  Names of_plan;
  add_keys(to_json(full_plan()), "sweep[]", of_plan);
  expected.merge(of_plan);
  Names of_sweep;
  add_keys(to_json(full_sweep()), "", of_sweep);
  EXPECT_EQ(of_sweep, expected);
}

TEST(OutputsPage, HasEveryKeyOfAnExplainedSnapshot) {
  explain::SnapshotExplanation found;
  found.lineup.rows.resize(1);
  found.lineup.unplanned.resize(1);
  found.tried.resize(2);
  found.tried.back().refused = "the job cannot have it";
  Names keys;
  add_keys(to_json(found), "", keys);
  expect_on_the_page(keys, "explain --snapshot --json");
}

TEST(OutputsPage, HasEveryKeyOfAnExplainedTrace) {
  explain::TraceExplanation found;
  for (auto* figures : {&found.real, &found.planned}) figures->by_group["(root)"] = {};
  found.tried.resize(2);
  found.tried.back().refused = "the job cannot have it";
  Names keys;
  add_keys(to_json(found), "", keys);
  expect_on_the_page(keys, "explain --trace --json");
}

TEST(OutputsPage, HasEveryExitStatus) {
  expect_on_the_page({"0", std::to_string(cli::kExitFailed), std::to_string(cli::kExitUsage),
                      std::to_string(cli::kExitDoesNotFit), std::to_string(cli::kExitSignal + SIGINT),
                      std::to_string(cli::kExitSignal + SIGTERM), std::to_string(cli::kExitSignal + SIGHUP),
                      std::to_string(cli::kExitSignal + SIGUSR1), std::to_string(cli::kExitSignal + SIGUSR2)},
                     "Exit status");
}

}  // namespace
}  // namespace loom::plan
