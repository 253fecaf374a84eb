// check_baselines: are the ratios of a benchmark's run as good as those on record?
//
//   elementwise_bench --benchmark_out=run.json
//   check_baselines bench/baselines/elementwise_bench.jsonl run.json            compares; exit 1 when one is worse
//   check_baselines bench/baselines/elementwise_bench.jsonl run.json --write    puts the run on record
//
// Record   one line of JSON a ratio: {"benchmark": "add/fp32/threads:1", "ratio": "of_triad", "value": 1.51}. The first
//          line has {"machine": ...}: ratios of one processor say little about another.
// Ratios   the counters below; bare times and rates are not on record. Of several repetitions the median counts.
// Worse    by more than 10 % (--allowed). A line on record that the run lacks is an error; --only-run lifts that, for a
//          run with --benchmark_filter.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/atomic_file.h"

namespace {

using nlohmann::json;

struct Counter {
  const char* name;
  bool lower_is_better;
};
constexpr Counter kCounters[] = {{"%peak", false},
                                 {"ratio", false},
                                 {"of_triad", false},
                                 {"of_memcpy", false},
                                 {"%stream", false},
                                 {"%training", false},
                                 {"whole_%peak", false},
                                 {"chunked_%peak", false},
                                 {"step_ratio", true},
                                 {"peak_ratio", true},
                                 {"mfu", false},
                                 {"unsharded_mfu", false},
                                 {"fsdp_over_unsharded", true},
                                 {"profiled_over_plain", true},
                                 {"save_of_plain_write", false},
                                 {"load_of_plain_read", false},
                                 {"stall_of_step", true}};

using Key = std::pair<std::string, std::string>;  // benchmark, counter
using Ratios = std::map<Key, double>;

[[noreturn]] void fail(const std::string& text) {
  fmt::print(stderr, "check_baselines: {}\n", text);
  std::exit(2);
}

// "add/fp32/threads:1/iterations:7/manual_time" without how often it ran.
std::string short_name(const std::string& name) {
  std::string kept;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.starts_with("iterations:") && !part.starts_with("repeats:") && part != "manual_time" &&
        part != "real_time") {
      kept += (kept.empty() ? "" : "/") + part;
    }
    begin = end + 1;
  }
  return kept;
}

Ratios read_run(const std::string& path) {
  std::ifstream in(path);
  const json run = json::parse(in, nullptr, false);
  if (!run.is_object() || !run.contains("benchmarks")) fail(path + " is not what --benchmark_out writes");
  std::map<Key, std::vector<double>> all;
  for (const json& one : run["benchmarks"]) {
    if (one.value("run_type", "") == "aggregate") continue;
    const std::string name = short_name(one.value("run_name", ""));
    if (one.value("error_occurred", false)) fail(fmt::format("{}: {}", name, one.value("error_message", "failed")));
    for (const Counter& counter : kCounters) {
      if (one.contains(counter.name)) all[{name, counter.name}].push_back(one[counter.name].get<double>());
    }
  }
  if (all.empty()) fail(path + " has no ratio");
  Ratios medians;
  for (auto& [key, values] : all) {
    std::sort(values.begin(), values.end());
    medians[key] = values[values.size() / 2];
  }
  return medians;
}

Ratios read_record(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(path + " cannot be read; make it with --write");
  Ratios ratios;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const json row = json::parse(line, nullptr, false);
    if (!row.is_object()) fail(fmt::format("{}:{}: not a JSON object", path, number));
    if (row.contains("machine")) continue;
    if (!row.contains("benchmark") || !row.contains("ratio") || !row.contains("value")) {
      fail(fmt::format("{}:{}: needs benchmark, ratio and value", path, number));
    }
    ratios[{row["benchmark"], row["ratio"]}] = row["value"].get<double>();
  }
  return ratios;
}

std::string machine() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

void write_record(const std::string& path, const Ratios& ratios) {
  std::string text = json({{"machine", machine()}}).dump() + "\n";
  for (const auto& [key, value] : ratios) {
    text += fmt::format("{{\"benchmark\": {}, \"ratio\": {}, \"value\": {:.3f}}}\n", json(key.first).dump(),
                        json(key.second).dump(), value);
  }
  loom::io::write_text(path, text);
  fmt::print("{}: {} ratios\n", path, ratios.size());
}

// How much better than on record: 1.05 is 5 % better.
double gain(const Key& key, double before, double now) {
  const auto* counter =
      std::find_if(std::begin(kCounters), std::end(kCounters), [&](const Counter& c) { return key.second == c.name; });
  if (counter == std::end(kCounters)) fail(fmt::format("'{}' on record is no known ratio", key.second));
  return counter->lower_is_better ? before / now : now / before;
}

int compare(const Ratios& record, const Ratios& run, double allowed, bool only_run) {
  int worse = 0;
  for (const auto& [key, before] : record) {
    const auto found = run.find(key);
    if (found == run.end()) {
      if (only_run) continue;
      fmt::print("MISSING  {} {}\n", key.first, key.second);
      ++worse;
      continue;
    }
    const double ratio = gain(key, before, found->second);
    const bool bad = !(ratio >= 1 - allowed);
    worse += bad ? 1 : 0;
    fmt::print("{:7}  {:50} {:20} {:8.3f} -> {:8.3f}  {:+.1f} %\n", bad ? "WORSE" : "ok", key.first, key.second, before,
               found->second, 100 * (ratio - 1));
  }
  for (const auto& [key, value] : run) {
    if (!record.contains(key)) fmt::print("new      {:50} {:20} {:8.3f}\n", key.first, key.second, value);
  }
  fmt::print("{} of {} ratios on record are worse by more than {:g} %\n", worse, record.size(), 100 * allowed);
  return worse == 0 ? 0 : 1;
}

}  // namespace

int main_of_check_baselines(int argc, char** argv) {
  CLI::App app("Compares the ratios of a benchmark's run with those on record.");
  std::string record, run;
  double allowed = 0.10;
  bool write = false, only_run = false;
  app.add_option("record", record, "bench/baselines/NAME.jsonl")->required();
  app.add_option("run", run, "what --benchmark_out wrote")->required()->check(CLI::ExistingFile);
  app.add_option("--allowed", allowed, "how much worse a ratio may be")->check(CLI::Range(0.0, 1.0));
  app.add_flag("--write", write, "put the run on record");
  app.add_flag("--only-run", only_run, "compare what the run has, without asking for the rest");
  CLI11_PARSE(app, argc, argv);
  const Ratios ratios = read_run(run);
  if (write) {
    write_record(record, ratios);
    return 0;
  }
  return compare(read_record(record), ratios, allowed, only_run);
}
