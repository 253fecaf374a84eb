// Promise: items run in the order of their stream, across streams in the order of events, with the same results under
//          both executors; the first cause of a failure reaches the host's first wait.
#include "engine/device/stream.h"

#include <atomic>
#include <gmock/gmock.h>
#include <latch>
#include <mutex>
#include <stdexcept>

#include "engine/core/rank_context.h"
#include "engine/device/issue_log.h"
#include "tests/device/sizes_and_streams.h"

namespace loom::device {
namespace {

constexpr StreamId kAllReduceStream{4, "all_reduce"};

using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

// What ran, from any thread.
class Log {
 public:
  StreamItem says(std::string word) {
    return {"item", "", {}, [this, word = std::move(word)] {
              const std::lock_guard lock(mutex_);
              words_.push_back(word);
            }};
  }
  std::vector<std::string> words() {
    const std::lock_guard lock(mutex_);
    return words_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> words_;
};

StreamItem runs(std::function<void()> run) { return {"item", "", {}, std::move(run)}; }
StreamItem fails(const char* cause) {
  return runs([cause] { throw std::runtime_error(cause); });
}

struct Streams {
  explicit Streams(ExecutorKind executor)
      : a(kGatherStream, executor, &context, &issue_log),
        b(kReduceScatterStream, executor, &context, &issue_log),
        c(kAllReduceStream, executor, &context, &issue_log),
        compute(StreamId::kCompute, executor, &context, &issue_log) {}

  RankContext context{3, 4};
  IssueLog issue_log;
  Log log;
  Stream a, b, c, compute;
};

class BothExecutors : public ::testing::TestWithParam<ExecutorKind> {
 protected:
  Streams s{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Stream, BothExecutors, ::testing::Values(ExecutorKind::kInline, ExecutorKind::kThreaded),
                         [](const auto& info) { return info.param == ExecutorKind::kInline ? "Inline" : "Threaded"; });

TEST_P(BothExecutors, ItemsOfAStreamRunInTheOrderTheyWereSubmitted) {
  std::vector<int> order;  // only stream a's items touch it
  for (int i = 0; i < 100; ++i) s.a.submit(runs([&order, i] { order.push_back(i); }));
  s.a.synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_P(BothExecutors, EventsOrderStreams) {
  s.a.submit(s.log.says("a"));
  s.b.wait(s.a.record());
  s.b.submit(s.log.says("b"));
  s.c.wait(s.b.record());
  s.c.submit(s.log.says("c"));
  s.compute.wait(s.c.record());
  s.compute.submit(s.log.says("compute"));
  EXPECT_THAT(s.log.words(), ElementsAre("a", "b", "c", "compute"));
}

TEST_P(BothExecutors, TheSameProgramLeavesTheSameBits) {
  float value = 1.0f;
  for (int i = 1; i <= 200; ++i) {  // not associative: another order gives other bits
    Stream& from = i % 2 == 0 ? s.a : s.b;
    Stream& to = i % 2 == 0 ? s.b : s.a;
    from.submit(runs([&value, i] { value = value * 1.0001f + 1.0f / static_cast<float>(i); }));
    to.wait(from.record());
  }
  s.a.synchronize();
  s.b.synchronize();
  float expected = 1.0f;
  for (int i = 1; i <= 200; ++i) expected = expected * 1.0001f + 1.0f / static_cast<float>(i);
  EXPECT_EQ(value, expected);
}

TEST_P(BothExecutors, ItemsRunForTheStreamsRank) {
  int rank = -1;
  const RankScope scope(s.context);
  s.a.submit(runs([&rank] { rank = RankContext::current().rank(); }));
  s.a.synchronize();
  EXPECT_EQ(rank, 3);
}

TEST_P(BothExecutors, TheFirstCauseTravelsOverTwoStreamsToTheHostsFirstWait) {
  s.a.submit(fails("the first cause"));
  s.a.submit(fails("a later one"));
  s.a.submit(s.log.says("skipped on a"));
  s.b.submit(s.log.says("before the wait"));
  s.b.wait(s.a.record());
  s.b.submit(s.log.says("skipped on b"));
  s.c.wait(s.b.record());
  s.c.submit(s.log.says("skipped on c"));
  EXPECT_THAT([&] { s.c.synchronize(); }, ThrowsMessage<std::runtime_error>(StrEq("the first cause")));
  EXPECT_THAT([&] { s.compute.wait(s.b.record()); }, ThrowsMessage<std::runtime_error>(StrEq("the first cause")));
  EXPECT_THAT(s.log.words(), ElementsAre("before the wait"));
}

TEST_P(BothExecutors, AStreamsOwnCauseIsNotReplacedByOneItWaitsFor) {
  s.a.submit(fails("of a"));
  s.b.submit(fails("of b"));
  s.b.wait(s.a.record());
  EXPECT_THAT([&] { s.b.synchronize(); }, ThrowsMessage<std::runtime_error>(StrEq("of b")));
}

TEST_P(BothExecutors, AnEventRecordedBeforeTheFailureIsGood) {
  s.a.submit(s.log.says("good"));
  const Event before = s.a.record();
  s.a.submit(fails("late"));
  EXPECT_NO_THROW(before.wait());
  EXPECT_THAT([&] { s.a.synchronize(); }, ThrowsMessage<std::runtime_error>(StrEq("late")));
}

TEST_P(BothExecutors, OnTheComputeStreamAnErrorIsThrownAtOnceAndPoisonsNothing) {
  EXPECT_THAT([&] { s.compute.submit(fails("at once")); }, ThrowsMessage<std::runtime_error>(StrEq("at once")));
  EXPECT_NO_THROW(s.compute.submit(s.log.says("next")));
  EXPECT_THAT(s.log.words(), ElementsAre("next"));
}

TEST_P(BothExecutors, DestructionRunsWhatWasSubmitted) {
  std::atomic<int> ran = 0;
  {
    Stream stream(StreamId::kH2D, GetParam(), &s.context, &s.issue_log);
    for (int i = 0; i < 50; ++i) stream.submit(runs([&ran] { ++ran; }));
  }
  EXPECT_EQ(ran, 50);
}

TEST_P(BothExecutors, ItemsWithoutWorkAreFree) {
  s.a.submit({"planned", "", {}, nullptr});
  EXPECT_TRUE(s.a.record().done());
  EXPECT_NO_THROW(s.a.synchronize());
}

TEST(ThreadedStream, RunsBehindTheHost) {
  Streams s(ExecutorKind::kThreaded);
  std::latch gate(1);
  s.a.submit(runs([&gate] { gate.wait(); }));
  s.a.submit(s.log.says("after the gate"));
  const Event event = s.a.record();  // the host is here while the first item waits
  EXPECT_FALSE(event.done());
  EXPECT_THAT(s.log.words(), ElementsAre());
  gate.count_down();
  event.wait();
  EXPECT_TRUE(event.done());
  EXPECT_THAT(s.log.words(), ElementsAre("after the gate"));
}

TEST(ThreadedStream, StreamsRunAtTheSameTime) {
  Streams s(ExecutorKind::kThreaded);
  std::latch both(2);  // each item needs the other one to be running
  s.a.submit(runs([&both] { both.arrive_and_wait(); }));
  s.b.submit(runs([&both] { both.arrive_and_wait(); }));
  s.a.synchronize();
  s.b.synchronize();
}

TEST(ThreadedStream, AWaitHoldsBackItsOwnStreamOnly) {
  Streams s(ExecutorKind::kThreaded);
  const Event outside = Event::pending();
  s.a.wait(outside);
  s.a.submit(s.log.says("held back"));
  s.b.submit(s.log.says("free"));
  s.b.synchronize();
  EXPECT_THAT(s.log.words(), ElementsAre("free"));
  outside.settle(nullptr);
  s.a.synchronize();
  EXPECT_THAT(s.log.words(), ElementsAre("free", "held back"));
}

TEST(Event, ADefaultMadeOneIsDone) {
  EXPECT_TRUE(Event().done());
  EXPECT_NO_THROW(Event().wait());
  EXPECT_EQ(Event().wait_for_cause(), nullptr);
}

TEST(Event, CopiesShareTheirState) {
  const Event event = Event::pending();
  const Event copy = event;
  EXPECT_FALSE(copy.done());
  event.settle(std::make_exception_ptr(std::runtime_error("shared")));
  EXPECT_TRUE(copy.done());
  EXPECT_THAT([&] { copy.wait(); }, ThrowsMessage<std::runtime_error>(StrEq("shared")));
}

}  // namespace
}  // namespace loom::device
