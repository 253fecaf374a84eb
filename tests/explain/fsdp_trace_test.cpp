// Promise: the trace that FSDP2 writes with TORCH_LOGS=+fsdp names the rank that left the order of the others, the
//          group and the phase; where all ranks are at one place, or the log is cut, none is named.
// World:   three ranks; each pass goes through the root, embed, two layers of one size and head, and back.
#include "engine/explain/fsdp_trace.h"

#include <gmock/gmock.h>

#include "engine/explain/explanation.h"
#include "engine/explain/log_reader.h"
#include "engine/explain/trace_fault.h"

namespace loom::explain {
namespace {

using std::string;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Events = std::vector<string>;

string line(int rank, const string& event) {
  return "[default" + std::to_string(rank) + "]:[rank" + std::to_string(rank) +
         "]:V1127 04:27:24.086000 21556 torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:446] FSDP::" + event;
}

const Events kPass{"root_pre_forward",
                   "pre_forward",
                   "pre_forward (embed)",
                   "post_forward (embed)",
                   "pre_forward (layers.0)",
                   "post_forward (layers.0)",
                   "pre_forward (layers.1)",
                   "post_forward (layers.1)",
                   "pre_forward (head)",
                   "post_forward (head)",
                   "post_forward",
                   "pre_backward",
                   "pre_backward (head)",
                   "post_backward (head)",
                   "pre_backward (layers.1)",
                   "post_backward (layers.1)",
                   "pre_backward (layers.0)",
                   "post_backward (layers.0)",
                   "root_post_backward",
                   "post_backward",
                   "post_backward (embed)"};

// The pass up to an event, and further events.
Events until(const string& last, const Events& more = {}) {
  Events events(kPass.begin(), std::ranges::find(kPass, last) + 1);
  events.insert(events.end(), more.begin(), more.end());
  return events;
}

// Of each rank: whole passes, then its events of the last one.
string log_of(int passes, const std::vector<Events>& last) {
  string log;
  for (std::size_t rank = 0; rank < last.size(); ++rank) {
    for (int pass = 0; pass < passes; ++pass) {
      for (const string& event : kPass) log += line(static_cast<int>(rank), event) + "\n";
    }
    for (const string& event : last[rank]) log += line(static_cast<int>(rank), event) + "\n";
  }
  return log;
}

TraceFinding finding(const string& log) {
  const auto found = finding_of(read_text(log).trace);
  EXPECT_TRUE(found);
  return found.value_or(TraceFinding{});
}

TraceFault only_fault(const string& log) {
  const auto found = finding(log);
  EXPECT_EQ(found.faults.size(), 1u);
  return found.faults.empty() ? TraceFault{} : found.faults.front();
}

TEST(FsdpTrace, NamesTheGroupThatARankSkips) {
  const Events most = until("pre_forward (head)"), skips = until("post_forward (embed)", {"pre_forward (layers.1)"});
  const TraceFault fault = only_fault(log_of(4, {most, most, skips}));
  EXPECT_EQ(fault.rank, 2);
  EXPECT_TRUE(fault.skipped);
  EXPECT_EQ(fault.group, "layers.0");
  EXPECT_EQ(fault.phase, "forward");
  EXPECT_EQ(fault.pass, 5);
  EXPECT_EQ(fault.instead, "pre_forward of group 'layers.1'");
  EXPECT_EQ(fault.decided_by, "most ranks");
}

TEST(FsdpTrace, TakesThePassBeforeWhereTwoRanksDiffer) {
  const Events goes_on = until("pre_forward (layers.0)"),
               skips = until("post_forward (embed)", {"pre_forward (layers.1)"});
  const TraceFault fault = only_fault(log_of(1, {skips, goes_on}));
  EXPECT_EQ(fault.rank, 0);
  EXPECT_EQ(fault.group, "layers.0");
  EXPECT_EQ(fault.decided_by, "the pass before");
  EXPECT_EQ(only_fault(log_of(0, {skips, goes_on})).decided_by, "the lowest rank");
}

TEST(FsdpTrace, NamesTheGroupThatARankSkipsInBackward) {
  const Events most = until("post_backward (layers.1)"),
               skips = until("post_backward (head)", {"pre_backward (layers.0)"});
  const TraceFault fault = only_fault(log_of(2, {most, skips, most}));
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.group, "layers.1");
  EXPECT_EQ(fault.phase, "backward");
}

TEST(FsdpTrace, TellsARankThatStoppedBeforeAGroupFromOneThatStoppedInIt) {
  const Events wait = until("pre_forward (layers.1)");
  const TraceFault before = only_fault(log_of(3, {wait, until("post_forward (layers.0)"), wait}));
  EXPECT_EQ(before.rank, 1);
  EXPECT_FALSE(before.skipped);
  EXPECT_FALSE(before.inside);
  EXPECT_EQ(before.group, "layers.1");
  const TraceFault inside = only_fault(log_of(3, {wait, wait, until("pre_forward (layers.0)")}));
  EXPECT_EQ(inside.rank, 2);
  EXPECT_TRUE(inside.inside);
  EXPECT_EQ(inside.group, "layers.0");
}

TEST(FsdpTrace, NamesARankThatStoppedBetweenPasses) {
  const TraceFault fault = only_fault(log_of(2, {until("pre_forward"), {}, until("pre_forward")}));
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.phase, "optimizer");
  EXPECT_EQ(fault.pass, 3);
}

TEST(FsdpTrace, NamesARankThatIsManyPassesBehind) {
  string log = log_of(9, {{}, {}});
  for (const string& event : until("pre_forward (layers.0)")) log += line(2, event) + "\n";
  const TraceFault fault = only_fault(log);
  EXPECT_EQ(fault.rank, 2);
  EXPECT_EQ(fault.group, "layers.0");
  EXPECT_TRUE(fault.inside);
  EXPECT_EQ(fault.pass, 1);
}

TEST(FsdpTrace, NamesNoRankWhereAllAreAtOnePlace) {
  const Events wait = until("pre_backward (layers.1)");
  const TraceFinding found = finding(log_of(2, {wait, wait, wait}));
  EXPECT_THAT(found.faults, IsEmpty());
  ASSERT_EQ(found.ranks.size(), 3u);
  EXPECT_EQ(found.ranks[0].event, "pre_backward");
  EXPECT_EQ(found.ranks[0].group, "layers.1");
  EXPECT_EQ(found.ranks[0].phase, "backward");
}

// The passes of the ranks cannot be lined up.
TEST(FsdpTrace, NamesNoRankInALogThatBeginsWithinAPass) {
  string log = log_of(2, {until("pre_forward (layers.1)"), until("pre_forward (layers.0)")});
  log.erase(0, log.find('\n') + 1);
  EXPECT_THAT(finding(log).faults, IsEmpty());
  EXPECT_THAT(to_text(explain("", read_text(log), nullptr)), HasSubstr("the log begins within a pass"));
}

TEST(FsdpTrace, CallsAForwardWithinBackwardRecompute) {
  Events again = until("pre_backward (layers.1)", {"pre_forward (layers.1)", "post_forward (layers.1)"});
  Events stops(again.begin(), again.end() - 1);
  EXPECT_EQ(only_fault(log_of(1, {again, again, stops})).phase, "recompute");
}

TEST(FsdpTrace, PassesOverLinesThatAreNoEvents) {
  for (const string& text :
       {string("] FSDP::pre_forward (a)"), line(0, "pre_forward(a)"), line(0, "pre_forward (a"), line(0, "unknown"),
        line(0, "pre_forward " + string(2000, 'a')), string("FSDP::pre_forward")}) {
    EXPECT_TRUE(read_text(text).trace.ranks().empty()) << text;
  }
}

TEST(FsdpTrace, KeepsTheLastPassesAlone) {
  const FsdpTrace trace = read_text(log_of(50, {{}})).trace;
  ASSERT_EQ(trace.ranks().size(), 1u);
  EXPECT_EQ(trace.ranks().at(0).size(), 3u);
  EXPECT_EQ(trace.ranks().at(0).back().number, 50);
}

TEST(FsdpTrace, IsLeftOutWhereItHasTooManyNames) {
  LogReader reader;
  reader.take(line(0, "root_pre_forward") + "\n");
  for (int i = 0; i < (1 << 16) + 1; ++i) reader.take(line(0, "pre_forward (m." + std::to_string(i) + ")") + "\n");
  const LogTexts texts = reader.finish();
  EXPECT_TRUE(texts.trace.overflowed());
  EXPECT_FALSE(finding_of(texts.trace));
}

TEST(FsdpTrace, IsExplainedWithoutAnErrorText) {
  const Events most = until("pre_forward (head)"), skips = until("post_forward (embed)", {"pre_forward (layers.1)"});
  const LogTexts texts = read_text(log_of(1, {most, most, skips}));
  EXPECT_TRUE(is_understood(texts));
  EXPECT_THAT(to_text(explain("", texts, nullptr)),
              HasSubstr("suspect: rank 2 skipped group 'layers.0' in forward, in pass 2: it went to pre_forward of"));
  EXPECT_FALSE(is_understood(read_text(log_of(1, {most, most, most}))));
}

}  // namespace
}  // namespace loom::explain
