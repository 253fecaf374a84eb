// Promise: a timeline notes wall times and call sites where asked for, stamped by the thread that ran the work, and
//          nothing otherwise.
#include "engine/device/timeline.h"

#include <atomic>
#include <chrono>
#include <gmock/gmock.h>
#include <thread>

#include "tests/support/one_rank.h"

namespace loom::device {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kMillisecond_ns = 1'000'000;

void sleep_ms() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

TEST(WallTimes, AreNotTakenUnlessAskedFor) {
  test::OneRank rank;
  rank.device().timeline().enable(true);
  rank.device().launch("kernel", {}, [] {});
  EXPECT_EQ(rank.device().timeline().entries().size(), 1u);
  EXPECT_THAT(rank.device().timeline().wall_times(), IsEmpty());
}

TEST(WallTimes, OfKernelsItemsAndHostWorkSpanWhatRan) {
  for (const ExecutorKind executor : {ExecutorKind::kInline, ExecutorKind::kThreaded}) {
    test::OneRank rank({.executor = executor});
    Timeline& timeline = rank.device().timeline();
    timeline.enable(true, {.wall = true});
    rank.device().launch("kernel", {}, sleep_ms);
    rank.device().stream(StreamId::kGather).submit({"item", "", {}, sleep_ms});
    rank.device().run_on_host("work", {}, sleep_ms);
    rank.device().synchronize();
    ASSERT_EQ(timeline.wall_times().size(), timeline.entries().size());
    for (std::size_t i = 0; i < 3; ++i) {
      const WallTime& time = timeline.wall_times()[i];
      EXPECT_LE(time.issued, time.start) << i;
      EXPECT_GE(time.end - time.start, kMillisecond_ns) << i;
    }
    EXPECT_GE(timeline.wall_times()[2].start, timeline.wall_times()[0].end);  // one thread
  }
}

TEST(WallTimes, OfAWaitEndWhenTheStreamGoesOn) {
  test::OneRank rank({.executor = ExecutorKind::kThreaded});
  Timeline& timeline = rank.device().timeline();
  timeline.enable(true, {.wall = true});
  std::atomic<bool> go = false;
  rank.device().stream(StreamId::kGather).submit({"slow", "", {}, [&] {
                                                    while (!go) std::this_thread::yield();
                                                  }});
  rank.device().stream(StreamId::kReduceScatter).wait(rank.device().stream(StreamId::kGather).record());
  go = true;
  rank.device().synchronize();
  ASSERT_EQ(timeline.entries()[1].kind, TimelineKind::kStreamWait);
  EXPECT_GE(timeline.wall_times()[1].end, timeline.wall_times()[0].end);
}

TEST(WallTimes, GoWithTheEntries) {
  test::OneRank rank;
  Timeline& timeline = rank.device().timeline();
  timeline.enable(true, {.wall = true});
  rank.device().launch("kernel", {}, [] {});
  timeline.clear();
  EXPECT_THAT(timeline.wall_times(), IsEmpty());
  timeline.enable(true);
  rank.device().launch("kernel", {}, [] {});
  EXPECT_THAT(timeline.wall_times(), IsEmpty());
}

TEST(CallSites, AreAskedForWithEachEntryAndInheritedWhereThereAreNone) {
  test::OneRank rank;
  Timeline& timeline = rank.device().timeline();
  std::string running = "model";
  timeline.enable(true, {.call_site = [&] { return running; }});
  rank.device().launch("forward", {}, [] {});
  const std::int32_t site = timeline.call_site();
  running.clear();
  rank.device().launch("between", {}, [] {});
  {
    const CallSiteScope scope(timeline, site);
    rank.device().launch("backward", {}, [] {});
    running = "model > block";
    rank.device().launch("recomputed", {}, [] {});
    running.clear();
  }
  rank.device().launch("after", {}, [] {});
  std::vector<std::string> sites;
  for (const TimelineEntry& entry : timeline.entries()) sites.push_back(timeline.text(entry.site));
  EXPECT_THAT(sites, ElementsAre("model", "", "model", "model > block", ""));
}

}  // namespace
}  // namespace loom::device
