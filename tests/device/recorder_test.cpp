// Promise: a recording is what the host issued, in its order, the same under both executors, with memory, wall times
//          and call sites where asked for; several recorders get what each would get alone, and a recording outlives
//          its device.
#include "engine/device/recorder.h"

#include <atomic>
#include <chrono>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <optional>
#include <thread>

#include "tests/device/sizes_and_streams.h"
#include "tests/support/issued.h"
#include "tests/support/one_rank.h"

namespace loom::device {
namespace {

constexpr MarkKind kGatherMark{"AG"};
constexpr MarkKind kGatheredMark{"W"};
constexpr MarkKind kReduceScatterMark{"RS"};

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Words = std::vector<std::string>;

constexpr std::int64_t kMillisecond_ns = 1'000'000;

void sleep_ms() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

// "stream/name/subject" of work and marks.
Words words(const Recording& recording) {
  Words found;
  for (const test::Issued& e : test::issued(recording)) found.push_back(e.stream + "/" + e.name + "/" + e.subject);
  return found;
}

// --- Order

Words recorded(ExecutorKind executor) {
  test::OneRank rank({.executor = executor});
  Device& device = rank.device();
  const Recorder recorder(device);
  device.stream(kGatherStream).submit({"all_gather", "layers.0", {0, 1, 2, 3}, [] {}});
  device.launch("linear", {8, 4, 2}, [] {});
  device.log().add_mark({.kind = kGatheredMark, .subject = "layers.0"});
  device.stream(kReduceScatterStream).submit({"reduce_scatter", "layers.0", {}, [] {}});
  device.synchronize();
  return words(recorder.recording());
}

TEST(Recorder, HoldsWorkAndMarksInHostOrder) {
  for (ExecutorKind executor : {ExecutorKind::kInline, ExecutorKind::kThreaded}) {
    EXPECT_THAT(recorded(executor), ElementsAre("gather/all_gather/layers.0", "compute/linear/", "/W/layers.0",
                                                "reduce_scatter/reduce_scatter/layers.0"));
  }
}

TEST(Recorder, KeepsTheCostOfWork) {
  test::OneRank rank;
  const Recorder recorder(rank.device());
  rank.device().launch("linear", {8, 4, 2}, [] {});
  const Cost cost = recorder.recording().entries.at(0).cost;
  EXPECT_EQ(cost.flops, 8);
  EXPECT_EQ(cost.read_bytes, 4);
  EXPECT_EQ(cost.written_bytes, 2);
}

TEST(Recorder, KeepsWhatAMarkSays) {
  test::OneRank rank;
  const Recorder recorder(rank.device());
  rank.device().log().add_mark({kReduceScatterMark, "head", 96, DType::kBF16, 3, true});
  const Recording recording = recorder.recording();
  const Mark& mark = recording.marks.at(0);
  EXPECT_EQ(mark.kind.token(), "RS");
  EXPECT_EQ(recording.text(mark.subject), "head");
  EXPECT_EQ(mark.bytes, 96);
  EXPECT_EQ(mark.dtype, DType::kBF16);
  EXPECT_EQ(mark.count, 3);
  EXPECT_TRUE(mark.prefetched);
}

TEST(Recorder, HoldsNothingThatWasIssuedWhileItDidNotRun) {
  test::OneRank rank;
  Device& device = rank.device();
  const auto work = [&](const char* name) {
    device.launch(name, {}, [] {});
    device.stream(StreamId::kH2D).submit({name, "", {}, [] {}});
    device.log().add_mark({.kind = kGatherMark});
  };
  work("before");
  EXPECT_FALSE(device.log().on());
  Recorder recorder(device);
  recorder.stop();
  work("between");
  EXPECT_THAT(words(recorder.recording()), IsEmpty());
  recorder.start();
  work("within");
  EXPECT_THAT(words(recorder.recording()), ElementsAre("compute/within/", "h2d/within/", "/AG/"));
  recorder.clear();
  work("later");
  EXPECT_THAT(words(recorder.recording()), ElementsAre("compute/later/", "h2d/later/", "/AG/"));
}

TEST(Recorder, SaysWhatKindOfWorkACollectiveIs) {
  test::OneRank rank;
  const Recorder recorder(rank.device());
  const std::vector<int> pair{0, 1}, alone{0};
  for (const std::vector<int>* ranks : {&pair, &alone}) {
    StreamItem item{"rs", "", {.unit = Unit::kLink}, [] {}};
    item.collective = Collective{CollectiveKind::kReduceScatter, 64, ranks, "dp_shard"};
    rank.device().stream(kReduceScatterStream).submit(std::move(item));
  }
  const Recording recording = recorder.recording();
  EXPECT_EQ(recording.entries[0].kind, EntryKind::kCollective);
  EXPECT_EQ(recording.entries[0].cost.work, WorkKind::kReduceScatter);
  EXPECT_THAT(recording.group(recording.entries[0].group), ElementsAre(0, 1));
  EXPECT_EQ(recording.text(recording.entries[0].axis), "dp_shard");
  EXPECT_EQ(recording.entries[1].kind, EntryKind::kCopy) << "of one rank";
  EXPECT_EQ(recording.entries[1].cost.work, WorkKind::kReduceScatter);
}

// --- Waits

TEST(Waits, ReferToEntriesByIndexAndLeaveOutWhatIsOlder) {
  test::OneRank rank;
  Device& device = rank.device();
  Stream& compute = device.stream(StreamId::kCompute);
  const Recorder elder(device);
  device.stream(kGatherStream).submit({"old", "", {}, [] {}});
  const Event old = device.stream(kGatherStream).record();
  const Recorder recorder(device);
  device.stream(kReduceScatterStream).wait(old);
  device.stream(kReduceScatterStream).record();
  compute.wait(device.stream(kReduceScatterStream).record());  // stands behind a wait that is left out
  device.stream(kGatherStream).submit({"new", "", {}, [] {}});
  compute.wait(device.stream(kGatherStream).record());
  const Recording recording = recorder.recording();
  ASSERT_THAT(recording.entries, SizeIs(2));
  EXPECT_EQ(recording.entries[1].kind, EntryKind::kStreamWait);
  EXPECT_EQ(recording.entries[1].other, 0);
  EXPECT_THAT(elder.recording().entries, SizeIs(5));
}

TEST(Waits, InsideAKernelOrAPauseAreNoWaits) {
  test::OneRank rank;
  Device& device = rank.device();
  const Recorder recorder(device);
  device.stream(kGatherStream).submit({"item", "", {}, [] {}});
  const Event event = device.stream(kGatherStream).record();
  device.launch("kernel", {}, [&] { device.stream(StreamId::kCompute).wait(event); });
  {
    const IssueLog::Pause pause(device.log());
    device.synchronize();
    EXPECT_EQ(device.stream(kGatherStream).record().entry(), kDone);
  }
  EXPECT_THAT(recorder.recording().entries, SizeIs(2));
  EXPECT_TRUE(device.log().on());
}

// --- Memory

std::shared_ptr<Block> take(Device& device, std::int64_t bytes) {
  return device.memory().allocate(bytes, MemCategory::kActivation, "test");
}

TEST(RecordedMemory, HasAllocationsAndTheirEnds) {
  test::OneRank rank;
  Device& device = rank.device();
  auto before = take(device, 1024);
  const Recorder recorder(device, {.memory = true});
  device.launch("first", {}, [] {});
  const auto during = take(device, 600);
  device.launch("second", {}, [] {});
  before.reset();
  during->recategorize(MemCategory::kGradient);

  const Recording recording = recorder.recording();
  const auto each = [&](auto value) {
    std::vector<std::int64_t> values;
    for (const MemorySample& sample : recording.memory) values.push_back(value(sample));
    return values;
  };
  const auto of = [](MemCategory category) {
    return [category](const MemorySample& sample) { return sample.by_category[category]; };
  };
  // The last two: out of one category, into the other.
  EXPECT_THAT(each([](const MemorySample& sample) { return sample.entries; }), ElementsAre(0, 1, 2, 2, 2));
  EXPECT_THAT(each(of(MemCategory::kActivation)), ElementsAre(1024, 2048, 1024, 0, 0));
  EXPECT_THAT(each(of(MemCategory::kGradient)), ElementsAre(0, 0, 0, 0, 1024));
  EXPECT_THAT(each([](const MemorySample& sample) { return sample.allocated_bytes; }),
              ElementsAre(1024, 2048, 1024, 1024, 1024));
  EXPECT_THAT(each([](const MemorySample& sample) { return sample.reserved_bytes; }),
              ElementsAre(2 << 20, 2 << 20, 2 << 20, 2 << 20, 2 << 20));
}

TEST(RecordedMemory, LeavesTheDeviceAloneWhenTheRecorderIsGone) {
  test::OneRank rank;
  { const Recorder recorder(rank.device(), {.memory = true}); }
  const auto later = take(rank.device(), 512);
  const Recorder next(rank.device(), {.memory = true});
  EXPECT_THAT(next.recording().memory, SizeIs(1));
}

TEST(RecordedMemory, HasThePeaksOfTheAccounts) {
  test::OneRank rank;
  Device& device = rank.device();
  const auto kept = take(device, 512);
  device.memory().reset_peaks();
  const Recorder recorder(device, {.memory = true});
  for (const std::int64_t bytes : {4096, 1 << 20, 512}) take(device, bytes)->recategorize(MemCategory::kGradient);
  const MemStats stats = device.memory().stats();
  const MemoryPeaks peaks = peaks_of(recorder.recording().memory);
  EXPECT_EQ(peaks.total_bytes, stats.peak_bytes);
  EXPECT_EQ(peaks.by_category, stats.peak_by_category);
  EXPECT_EQ(peaks.by_category_at_peak, stats.by_category_at_peak);
  EXPECT_EQ(peaks.allocated_bytes, stats.allocator.peak_allocated_bytes);
  EXPECT_EQ(peaks.reserved_bytes, stats.allocator.peak_reserved_bytes);
}

// --- Wall times

TEST(WallTimes, AreNotTakenUnlessAskedFor) {
  test::OneRank rank;
  const Recorder recorder(rank.device());
  rank.device().launch("kernel", {}, [] {});
  EXPECT_EQ(recorder.recording().entries.size(), 1u);
  EXPECT_THAT(recorder.recording().wall, IsEmpty());
}

TEST(WallTimes, OfKernelsItemsAndHostWorkSpanWhatRan) {
  for (const ExecutorKind executor : {ExecutorKind::kInline, ExecutorKind::kThreaded}) {
    test::OneRank rank({.executor = executor});
    const Recorder recorder(rank.device(), {.wall = true});
    rank.device().launch("kernel", {}, sleep_ms);
    rank.device().stream(kGatherStream).submit({"item", "", {}, sleep_ms});
    rank.device().run_on_host("work", {}, sleep_ms);
    const Recording recording = recorder.recording();  // waits for the item
    ASSERT_EQ(recording.entries.size(), 3u);
    ASSERT_EQ(recording.wall.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const WallTime& time = recording.wall[i];
      EXPECT_LE(time.issued, time.start) << i;
      EXPECT_GE(time.end - time.start, kMillisecond_ns) << i;
    }
    EXPECT_GE(recording.wall[2].start, recording.wall[0].end);  // one thread
  }
}

TEST(WallTimes, OfAWaitEndWhenTheStreamGoesOn) {
  test::OneRank rank({.executor = ExecutorKind::kThreaded});
  const Recorder recorder(rank.device(), {.wall = true});
  std::atomic<bool> go = false;
  rank.device().stream(kGatherStream).submit({"slow", "", {}, [&] {
                                                while (!go) std::this_thread::yield();
                                              }});
  rank.device().stream(kReduceScatterStream).wait(rank.device().stream(kGatherStream).record());
  go = true;
  const Recording recording = recorder.recording();
  ASSERT_EQ(recording.entries[1].kind, EntryKind::kStreamWait);
  EXPECT_GE(recording.wall[1].end, recording.wall[0].end);
}

TEST(WallTimes, MayBeStampedAfterTheRecorderIsGone) {
  test::OneRank rank({.executor = ExecutorKind::kThreaded});
  std::atomic<bool> go = false;
  {
    const Recorder recorder(rank.device(), {.wall = true});
    rank.device().stream(kGatherStream).submit({"slow", "", {}, [&] {
                                                  while (!go) std::this_thread::yield();
                                                }});
  }
  go = true;
  rank.device().synchronize();
  const Recorder next(rank.device());
  rank.device().launch("kernel", {}, [] {});
  EXPECT_THAT(next.recording().wall, IsEmpty());
}

// --- Call sites

Words sites(const Recording& recording) {
  Words sites;
  for (const Entry& entry : recording.entries) sites.push_back(recording.text(entry.site));
  return sites;
}

TEST(CallSites, AreAskedForWithEachEntryAndInheritedWhereThereAreNone) {
  test::OneRank rank;
  std::string running = "model";
  const Recorder recorder(rank.device(), {.call_site = [&] { return running; }});
  const Recorder without(rank.device());
  rank.device().launch("forward", {}, [] {});
  const std::int32_t site = rank.device().log().call_site();
  running.clear();
  rank.device().launch("between", {}, [] {});
  {
    const CallSiteScope scope(rank.device().log(), site);
    rank.device().launch("backward", {}, [] {});
    running = "model > block";
    rank.device().launch("recomputed", {}, [] {});
    running.clear();
  }
  rank.device().launch("after", {}, [] {});
  EXPECT_THAT(sites(recorder.recording()), ElementsAre("model", "", "model", "model > block", ""));
  EXPECT_THAT(sites(without.recording()), ElementsAre("", "", "", "", ""));
}

// --- Several

// All that a recording says, without its clock.
std::string everything(const Recording& recording) {
  std::string text;
  recording.visit(
      [&](const Entry& e) {
        text += fmt::format("{} {} '{}' '{}' {} {} {} {}\n", static_cast<int>(e.kind), e.stream.place(),
                            recording.text(e.name), recording.text(e.subject), recording.text(e.site), e.other, e.bytes,
                            e.cost.read_bytes);
      },
      [&](const Mark& m) {
        text += fmt::format("{} '{}' {} {}\n", m.kind.token(), recording.text(m.subject), m.entries, m.bytes);
      });
  for (const MemorySample& m : recording.memory) {
    text += fmt::format("{} {} {}\n", m.entries, m.allocated_bytes, m.reserved_bytes);
  }
  return text + fmt::format("{} wall times", recording.wall.size());
}

// Two steps of everything that can be recorded.
void work(Device& device, const std::string& step) {
  device.log().add_phase(step);
  const auto block = take(device, 1024);
  device.stream(kGatherStream).submit({"all_gather", "layers.0", {.read_bytes = 3}, [] {}});
  device.log().add_mark({.kind = kGatherMark, .subject = step});
  device.stream(StreamId::kCompute).wait(device.stream(kGatherStream).record());
  device.launch("linear", {.read_bytes = 5}, [] {});
  device.synchronize();
}

const std::vector<RecorderOptions> kOptions{{}, {.memory = true}, {.wall = true, .memory = true}, {.entries = false}};

std::string alone(const RecorderOptions& options) {
  test::OneRank rank({.executor = ExecutorKind::kThreaded});
  work(rank.device(), "first");
  const Recorder recorder(rank.device(), options);
  work(rank.device(), "second");
  return everything(recorder.recording());
}

TEST(SeveralRecorders, EachGetWhatTheyGetAlone) {
  test::OneRank rank({.executor = ExecutorKind::kThreaded});
  Device& device = rank.device();
  const Recorder elder(device, {.wall = true, .memory = true, .call_site = [] { return "elder"; }});
  work(device, "first");
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (const RecorderOptions& options : kOptions) recorders.push_back(std::make_unique<Recorder>(device, options));
  work(device, "second");
  for (std::size_t i = 0; i < kOptions.size(); ++i) {
    const std::string together = everything(recorders[i]->recording());
    recorders[i]->stop();
    EXPECT_EQ(together, alone(kOptions[i])) << "recorder " << i;
  }
}

TEST(SeveralRecorders, MayEndInAnyOrder) {
  test::OneRank rank;
  Device& device = rank.device();
  std::optional<Recorder> first(std::in_place, device), second(std::in_place, device);
  device.launch("both", {}, [] {});
  first.reset();
  device.launch("one", {}, [] {});
  EXPECT_THAT(words(second->recording()), ElementsAre("compute/both/", "compute/one/"));
  second.reset();
  EXPECT_FALSE(device.log().on());
}

TEST(Recording, OutlivesTheDevice) {
  Recording recording;
  {
    test::OneRank rank;
    const Recorder recorder(rank.device(), {.wall = true, .memory = true});
    work(rank.device(), "step");
    recording = recorder.recording();
  }
  EXPECT_EQ(recording.wall.size(), recording.entries.size());
  EXPECT_THAT(words(recording), ElementsAre("gather/all_gather/layers.0", "/AG/step", "compute/linear/"));
}

}  // namespace
}  // namespace loom::device
