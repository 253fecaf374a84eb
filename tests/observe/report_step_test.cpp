// Promise: the arrays of a report are the recording's and the allocator's figures; what is left out is counted, and
//          never the peak.
// World:   a dry device, entries by hand, an invented profile's time.
#include "engine/observe/report_step.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/device/recorder.h"
#include "engine/virtual_time/breakdown.h"
#include "sharding/streams.h"
#include "tests/support/one_rank.h"

namespace loom::observe {
namespace {

using device::MemCategory;
using device::StreamId;
using nlohmann::ordered_json;
using ::testing::ElementsAre;
using virtual_time::EntryTime;

constexpr std::int64_t kKiB = 1024;

class Step : public ::testing::Test {
 protected:
  std::int64_t gather(const std::string& group, std::int64_t bytes) {
    const std::vector<int>& ranks = ranks_;
    log().add_item(sharding::kGatherStream,
                   {.name = "all_gather",
                    .subject = group,
                    .cost = {.link_bytes = bytes, .unit = device::Unit::kLink},
                    .run = {},
                    .collective = device::Collective{device::CollectiveKind::kAllGather, 2 * bytes, &ranks}});
    return log().last_of(sharding::kGatherStream);
  }
  void kernel(const char* name, std::int64_t written) {
    log().add_kernel(StreamId::kCompute, name, {.written_bytes = written});
  }
  // Every entry takes 10 ns, one after another.
  virtual_time::RankTimes times() const {
    const device::Recording made = recording();
    virtual_time::RankTimes times;
    for (std::size_t i = 0; i < made.entries.size(); ++i) {
      const auto start = static_cast<std::int64_t>(10 * i);
      times.entries.push_back({start, start, start + 10});
      times.end_ns = start + 10;
      if (made.entries[i].kind == device::EntryKind::kPhase) {
        times.phases.push_back({static_cast<std::int64_t>(i), start, start, start});
      }
    }
    return times;
  }
  device::MemorySample sample(std::int64_t entries, std::int64_t activation, std::int64_t allocated) const {
    device::MemorySample sample{.entries = entries, .allocated_bytes = allocated, .reserved_bytes = 2048 * kKiB};
    sample.by_category[MemCategory::kActivation] = activation;
    return sample;
  }

  device::IssueLog& log() { return rank_.device().log(); }
  device::Recording recording(std::vector<device::MemorySample> memory = {}) const {
    device::Recording recording = recorder_.recording();
    recording.memory = std::move(memory);
    return recording;
  }

 private:
  const std::vector<int> ranks_{0, 1};
  test::OneRank rank_{{.dry_run = true}};
  device::Recorder recorder_{rank_.device()};
};

TEST_F(Step, KernelsBelongToTheGroupWaitedForLast) {
  log().add_phase("forward");
  kernel("embedding", 1);
  const std::int64_t first = gather("layers.0", 64);
  log().add_stream_wait(StreamId::kCompute, first);
  kernel("matmul", 8);
  const std::int64_t root = gather("", 32);
  kernel("silu", 4);
  log().add_stream_wait(StreamId::kCompute, root);
  kernel("norm", 2);
  log().add_phase("optimizer");
  kernel("adamw", 16);
  const ordered_json json = timeline_json({recording(), times()});

  EXPECT_THAT(json.at("groups"), ElementsAre("layers.0", "(root)"));
  const ordered_json& entries = json.at("entries");
  EXPECT_EQ(entries.at("group"), ordered_json({-1, 0, 0, 1, 0, 1, -1}));
  EXPECT_EQ(entries.at("bytes"), ordered_json({1, 64, 8, 32, 4, 2, 16}));
  EXPECT_EQ(entries.at("start_ns"), ordered_json({10, 20, 40, 50, 60, 80, 100}));
  EXPECT_EQ(entries.at("duration_ns"), ordered_json({10, 10, 10, 10, 10, 10, 10}));
  const auto& streams = json.at("streams");
  EXPECT_EQ(streams.at(entries.at("stream").at(1).get<std::size_t>()), "gather");
  EXPECT_EQ(streams.at(entries.at("stream").at(2).get<std::size_t>()), "compute");
  EXPECT_EQ(json.at("phases"),
            ordered_json::parse(R"([{"phase":"forward","start_ns":0},{"phase":"optimizer","start_ns":90}])"));
}

// Entries stand one after another, 10 ns each: every gather is exposed.
TEST_F(Step, GroupsSayWhatTheyMovedAndHowLongComputeStoodStill) {
  log().add_phase("forward");
  const std::int64_t first = gather("layers.0", 64);
  log().add_stream_wait(StreamId::kCompute, first);
  kernel("matmul", 8);
  const std::int64_t again = gather("layers.0", 64);
  gather("layers.1", 32);
  log().add_stream_wait(StreamId::kCompute, again);
  kernel("matmul", 8);
  log().add_phase("optimizer");
  kernel("adamw", 16);
  const device::Recording made = recording();
  const virtual_time::RankTimes when = times();
  ordered_json report;
  add_step(report, {made, when});
  EXPECT_EQ(report.at("groups"), ordered_json::parse(R"([
    {"group": "layers.0", "gathers": 2, "gathered_bytes": 128, "gather_ns": 20, "reductions": 0, "reduced_bytes": 0,
     "reduce_ns": 0, "exposed_ns": 20, "compute_ns": 20},
    {"group": "layers.1", "gathers": 1, "gathered_bytes": 64, "gather_ns": 10, "reductions": 0, "reduced_bytes": 0,
     "reduce_ns": 0, "exposed_ns": 10, "compute_ns": 0}])"));
  EXPECT_EQ(report.at("timeline").at("exposed"), ordered_json::parse(R"({"start_ns": [10, 40, 50],
    "duration_ns": [10, 10, 10], "group": ["layers.0", "layers.0", "layers.1"]})"));
  std::int64_t exposed = 0;
  for (const std::int64_t duration : report.at("timeline").at("exposed").at("duration_ns")) exposed += duration;
  EXPECT_EQ(exposed, virtual_time::break_down(made, when, 0, when.end_ns).exposed_comm_ns);
}

TEST_F(Step, EntriesBeyondTheLimitAreCounted) {
  for (int i = 0; i < 7; ++i) kernel("matmul", i);
  const ordered_json json = timeline_json({recording(), times()}, 5);
  EXPECT_EQ(json.at("entries_of_step"), 7);
  EXPECT_EQ(json.at("entries_shown"), 5);
  EXPECT_EQ(json.at("entries").at("bytes"), ordered_json({0, 1, 2, 3, 4}));
  EXPECT_EQ(json.at("end_ns"), 70);
}

TEST_F(Step, MemoryStandsWhereTheComputeStreamIs) {
  kernel("matmul", 1);
  gather("layers.0", 64);
  kernel("matmul", 1);
  const std::vector<device::MemorySample> samples{sample(0, 512, 512), sample(1, 1024, 1536), sample(2, 512, 512),
                                                  sample(3, 2048, 2048)};
  const ordered_json json = memory_over_step_json({recording(samples), times()});
  // The second and third stand at one instant: the larger stays. The last point is the end of the step.
  EXPECT_EQ(json.at("time_ns"), ordered_json({0, 10, 30, 30}));
  EXPECT_EQ(json.at("by_category").at("activation_bytes"), ordered_json({512, 1024, 2048, 2048}));
  EXPECT_EQ(json.at("by_category").at("shard_bytes"), ordered_json({0, 0, 0, 0}));
  EXPECT_EQ(json.at("allocated_bytes"), ordered_json({512, 1536, 2048, 2048}));
  EXPECT_EQ(json.at("changes_of_step"), 3);
  EXPECT_EQ(json.at("points_shown"), 4);
}

TEST_F(Step, ThinnedMemoryKeepsThePeak) {
  std::vector<device::MemorySample> samples{sample(0, 0, 0)};
  for (std::int64_t i = 1; i <= 1000; ++i) {
    kernel("matmul", 1);
    const std::int64_t bytes = i == 617 ? 1 << 20 : 512 * (i % 10);
    samples.push_back(sample(i, bytes, bytes));
  }
  const ordered_json json = memory_over_step_json({recording(samples), times()}, 50);
  EXPECT_EQ(json.at("points_shown"), 51);
  EXPECT_EQ(json.at("changes_of_step"), 1000);
  const auto allocated = json.at("allocated_bytes").get<std::vector<std::int64_t>>();
  EXPECT_EQ(*std::ranges::max_element(allocated), 1 << 20);
  EXPECT_EQ(allocated.back(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(json.at("time_ns").get<std::vector<std::int64_t>>()));
}

}  // namespace
}  // namespace loom::observe
