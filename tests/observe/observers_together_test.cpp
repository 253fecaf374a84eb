// Promise: a report and a profile of the same step each say what they say alone; both, and metrics.jsonl, have the same
//          memory, and both have it at the same virtual time.
// World:   tests/observe/tiny_run.h; the report records step 1.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <set>

#include "tests/observe/tiny_run.h"

namespace loom::observe {
namespace {

using nlohmann::json;
using test::TracedSlice;
using test::Words;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ObserversTogether : public test::TinyRun {
 protected:
  struct Seen {
    json report{};
    Words virtual_slices{};
    Words wall_work{};  // kernels, copies and collectives by name; their order is the clock's
    std::map<std::pair<int, std::string>, std::vector<std::int64_t>> counters{};
    json trace{};
  };

  Seen run(bool report, bool profile, const std::string& step_end) {
    Words words;
    const auto add = [&](const Words& more) { words.insert(words.end(), more.begin(), more.end()); };
    if (report) add({"--report", (folder / "report.html").string(), "--report-device", "h200"});
    if (profile) {
      add({"--profile", "--profile-step-start", "1", "--profile-step-end", step_end, "--profile-level", "level2"});
      add({"--profile-device", "h200", "--profile-with-cpu"});
    }
    train(words);
    Seen seen;
    if (report) seen.report = report_data();
    if (!profile) return seen;
    const test::TraceReader trace(text("rank0_steps1-" + std::to_string(std::stoi(step_end) - 1) + ".json"));
    for (const TracedSlice& s : trace.slices(1)) {
      seen.virtual_slices.push_back(fmt::format("{} {} {} {}", s.name, s.start_ns, s.end_ns, s.args.dump()));
    }
    for (const TracedSlice& s : trace.slices(0)) {
      if (s.category == "kernel" || s.category == "copy" || s.category == "collective") {
        seen.wall_work.push_back(s.name + " " + s.args.dump());
      }
    }
    std::ranges::sort(seen.wall_work);
    seen.counters = trace.counters;
    seen.trace = trace.json;
    return seen;
  }

  // Of the page, what the recorded step was.
  json report_data() const {
    constexpr std::string_view kBegins = R"(<script type="application/json" id="data">)";
    const std::string page = test::read_file(folder / "report.html");
    const std::size_t begin = page.find(kBegins) + kBegins.size();
    const json all = json::parse(page.substr(begin, page.find("</script>", begin) - begin));
    json step;
    for (const char* key : {"recorded_step", "time", "timeline", "memory_over_step", "warnings"})
      step[key] = all.at(key);
    return step;
  }
};

TEST_F(ObserversTogether, SayWhatTheySayAlone) {
  const Seen report = run(true, false, "3");
  const Seen profile = run(false, true, "3");
  const Seen both = run(true, true, "3");
  EXPECT_EQ(both.report, report.report);
  ASSERT_THAT(profile.virtual_slices, Not(IsEmpty()));
  EXPECT_THAT(both.virtual_slices, ElementsAreArray(profile.virtual_slices));
  EXPECT_THAT(both.wall_work, ElementsAreArray(profile.wall_work));
  EXPECT_EQ(both.counters, profile.counters);
}

// The compute stream's kernels by the report, as a trace names them.
Words kernels_of(const json& report) {
  const json& timeline = report.at("timeline");
  const json& entries = timeline.at("entries");
  Words kernels;
  for (std::size_t i = 0; i < entries.at("stream").size(); ++i) {
    if (entries.at("stream")[i] != 0) continue;
    const std::int64_t start = entries.at("start_ns")[i], length = entries.at("duration_ns")[i];
    const std::string name = timeline.at("names").at(entries.at("name")[i].get<std::size_t>());
    kernels.push_back(fmt::format("{} {} {}", name, start, start + length));
  }
  return kernels;
}

TEST_F(ObserversTogether, HaveTheSameVirtualTime) {
  const Seen both = run(true, true, "2");
  Words traced;
  for (const TracedSlice& s : test::TraceReader(both.trace.dump()).lane(1, "compute")) {
    if (s.category == "kernel") traced.push_back(fmt::format("{} {} {}", s.name, s.start_ns, s.end_ns));
  }
  ASSERT_THAT(traced, Not(IsEmpty()));
  EXPECT_THAT(kernels_of(both.report), ElementsAreArray(traced));
}

// What a trace's counters say over virtual time. A change is a category's counter, then the allocator's where they
// differ.
class Counters {
 public:
  explicit Counters(const json& trace) {
    std::vector<json> events;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") == "C" && event.at("pid") == 1) events.push_back(event);
    }
    for (std::size_t i = 0; i < events.size(); ++i) {
      const std::string name = events[i].at("name");
      now_[name] = events[i].at("args").at("bytes");
      peak_[name] = std::max(peak_[name], now_[name]);
      if (i + 1 < events.size() && of_allocator(events[i + 1].at("name"))) continue;  // the change goes on
      peak_total_ = std::max(peak_total_, total());
      std::int64_t& most = allocated_[std::llround(events[i].at("ts").get<double>() * 1000)];
      most = std::max(most, now_["memory: allocated"]);
    }
  }

  // In the form of metrics.jsonl.
  json peaks() const {
    json peaks{{"total", peak_total_}};
    for (const auto& [name, bytes] : peak_) {
      if (!of_allocator(name)) peaks[name.substr(name.find(' ') + 1)] = bytes;
    }
    return peaks;
  }
  // The largest at this instant.
  std::int64_t allocated_at(std::int64_t time_ns) const { return allocated_.at(time_ns); }

 private:
  static bool of_allocator(const std::string& name) {
    return name == "memory: allocated" || name == "memory: reserved";
  }
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& [name, bytes] : now_) sum += of_allocator(name) ? 0 : bytes;
    return sum;
  }

  std::map<std::string, std::int64_t> now_, peak_;
  std::map<std::int64_t, std::int64_t> allocated_;
  std::int64_t peak_total_ = 0;
};

TEST_F(ObserversTogether, HaveTheMemoryOfMetrics) {
  const Seen both = run(true, true, "2");
  const json metrics = this->metrics().at(1).at("peak_memory_bytes");
  ASSERT_THAT(metrics, SizeIs(9));  // eight categories and their total
  EXPECT_EQ(both.report.at("memory_over_step").at("peak_bytes"), metrics);
  EXPECT_EQ(Counters(both.trace).peaks(), metrics);
}

TEST_F(ObserversTogether, HaveTheMemoryAtTheSameTime) {
  const Seen both = run(true, true, "2");
  const Counters counters(both.trace);
  const json& memory = both.report.at("memory_over_step");
  const auto points = memory.at("time_ns").size() - 1;  // the last one is the step's end
  ASSERT_GT(points, 10u);
  std::set<std::int64_t> instants;
  for (std::size_t i = 0; i < points; ++i) {
    const std::int64_t time_ns = memory.at("time_ns")[i];
    instants.insert(time_ns);
    EXPECT_EQ(memory.at("allocated_bytes")[i], counters.allocated_at(time_ns)) << "at " << time_ns;
  }
  EXPECT_THAT(instants, SizeIs(points));
}

}  // namespace
}  // namespace loom::observe
