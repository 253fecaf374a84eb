// Promise: a log of many ranks gives the ranks behind, silent and out of order; type and sizes of the collectives give
//          their place in the planned step, and say so where several places are possible.
// World:   a group of 4 ranks; a step gathers embed, three equal layers and the head, and reduces them backwards.
#include "engine/explain/hang.h"

#include <gmock/gmock.h>

#include "engine/explain/hang_place.h"

namespace loom::explain {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kRanks = 4;

ErrorReport state(std::int64_t rank, std::int64_t at, std::int64_t enqueued, std::int64_t completed) {
  return {.line = 1, .speaker = {}, .what = NcclState{rank, "1", at, enqueued, completed}};
}

// Of an all-gather of so many elements a rank, or of a reduce-scatter where `reduces`.
ErrorReport timeout(std::int64_t rank, std::int64_t seq, std::int64_t part, bool reduces = false) {
  NcclTimeout text{rank, "1", seq, "_ALLGATHER_BASE", part, kRanks * part, 600000, 600010};
  if (reduces) text = {rank, "1", seq, "_REDUCE_SCATTER_BASE", kRanks * part, part, 600000, 600010};
  return {.line = 1, .speaker = {}, .what = text};
}

// Parts: embed 100, layers 10, head 100 (in bf16).
CollectiveOrder order() {
  CollectiveOrder order{.axis = "dp_shard", .ranks = {0, 1, 2, 3}, .step = {}};
  const auto add = [&](const std::string& op, const std::string& group, const std::string& phase, std::int64_t part) {
    order.step.push_back({.op = op,
                          .subject = group,
                          .phase = phase,
                          .micro_batch = 0,
                          .of_group = true,
                          .prefetched = false,
                          .bytes = kRanks * part * 2,
                          .ranks = kRanks,
                          .element_bytes = 2});
  };
  const std::vector<std::pair<std::string, std::int64_t>> groups{
      {"embed", 100}, {"layers.0", 10}, {"layers.1", 10}, {"layers.2", 10}, {"head", 101}};
  for (const auto& [group, part] : groups) add("ALLGATHER", group, "forward", part);
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    add("REDUCE_SCATTER", group->first, "backward", group->second);
  }
  return order;
}

std::vector<std::string> subjects(const std::vector<PlannedCollective>& list) {
  std::vector<std::string> names;
  for (const PlannedCollective& planned : list) names.push_back(planned.subject);
  return names;
}

Hang hang_of(std::vector<ErrorReport> reports) {
  const std::vector<Hang> hangs = hangs_of({.reports = std::move(reports), .lines = 0, .left_out = 0});
  EXPECT_EQ(hangs.size(), 1u);
  return hangs.empty() ? Hang{} : hangs.front();
}

TEST(Hang, NamesTheRankThatReportsNothing) {
  const Hang hang = hang_of({timeout(0, 5, 101), state(0, 5, 7, 4), timeout(1, 5, 101), timeout(3, 5, 101)});
  EXPECT_EQ(hang.waited, 5);
  EXPECT_EQ(hang.size, kRanks);
  EXPECT_THAT(hang.silent, ElementsAre(2));
  EXPECT_THAT(hang.behind, IsEmpty());
}

TEST(Hang, NamesTheRankThatNeverIssuedIt) {
  const Hang hang = hang_of({state(0, 5, 7, 4), state(1, 5, 6, 4), state(2, 5, 4, 4), state(3, 5, 7, 4)});
  EXPECT_THAT(hang.behind, ElementsAre(2));
}

TEST(Hang, NamesTheRanksThatCompletedLeast) {
  const Hang hang = hang_of({state(0, 5, 7, 4), state(1, 5, 7, 4), state(2, 4, 7, 3), state(3, 4, 7, 3)});
  EXPECT_EQ(hang.waited, 4);
  EXPECT_THAT(hang.behind, ElementsAre(2, 3));
}

// The timeouts of PyTorch 2.5 name no group, the states do.
TEST(Hang, PutsATimeoutToTheGroupOfItsRanksState) {
  ErrorReport nameless = timeout(0, 5, 101);
  std::get<NcclTimeout>(nameless.what).group.clear();
  const auto hangs = hangs_of({.reports = {nameless, state(0, 5, 7, 4)}, .lines = 0, .left_out = 0});
  ASSERT_EQ(hangs.size(), 1u);
  EXPECT_EQ(hangs[0].group, "1");
  EXPECT_EQ(hangs[0].size, kRanks);
}

TEST(HangPlace, IsTheCollectiveOfThatTypeAndSize) {
  const auto place = place_of(hang_of({timeout(0, 25, 101)}), {order()});
  ASSERT_TRUE(place);
  EXPECT_THAT(subjects(place->candidates), ElementsAre("head"));
  EXPECT_THAT(place->offsets, ElementsAre(0));
  EXPECT_EQ(place->step, 3);  // 10 collectives a step
}

// SeqNum 24 is the gather of layers.2 without collectives before the first step, of another layer with some.
TEST(HangPlace, SaysAllLayersOfOneSizeWhereTheNumberAloneDecides) {
  const auto place = place_of(hang_of({timeout(0, 24, 10)}), {order()});
  ASSERT_TRUE(place);
  EXPECT_THAT(subjects(place->candidates), ElementsAre("layers.2", "layers.1", "layers.0"));
  EXPECT_THAT(place->offsets, ElementsAre(0, 1, 2));
}

// A second number that times out, behind the first, decides which layer it is.
TEST(HangPlace, TakesAllReportedNumbersTogether) {
  const auto place = place_of(hang_of({timeout(0, 26, 10), timeout(0, 27, 101)}), {order()});
  ASSERT_TRUE(place);
  EXPECT_THAT(subjects(place->candidates), ElementsAre("layers.2"));
  EXPECT_THAT(place->offsets, ElementsAre(2));
  EXPECT_EQ(place->agreeing, 2);
}

// Rank 2 skipped a layer: it is at the head when the others gather layers.2.
TEST(HangPlace, SaysWhatARankThatIsAheadSkipped) {
  const Hang hang = hang_of({timeout(0, 4, 10), timeout(1, 4, 10), timeout(2, 4, 101), timeout(3, 4, 10)});
  ASSERT_EQ(hang.others.size(), 1u);
  EXPECT_EQ(hang.others[0].rank, 2);
  const auto place = place_of(hang, {order()});
  ASSERT_TRUE(place);
  ASSERT_EQ(place->out_of_order.size(), 1u);
  EXPECT_EQ(place->out_of_order[0].ahead, 1);
  EXPECT_EQ(place->out_of_order[0].issued->subject, "head");
  EXPECT_THAT(subjects(place->out_of_order[0].skipped), ElementsAre("layers.0", "layers.1", "layers.2"));
}

// A step of two micro-batches.
CollectiveOrder order_of_two() {
  CollectiveOrder two = order();
  for (PlannedCollective planned : order().step) {
    planned.micro_batch = 1;
    two.step.push_back(planned);
  }
  return two;
}

TEST(HangPlace, SaysThatARankMayBeOutOfOrderAtSeveralPlaces) {
  const Hang hang = hang_of({timeout(0, 4, 10), timeout(1, 4, 10), timeout(2, 4, 101), timeout(3, 4, 10)});
  const auto place = place_of(hang, {order_of_two()});
  ASSERT_TRUE(place);
  ASSERT_EQ(place->out_of_order.size(), 1u);
  EXPECT_TRUE(place->out_of_order[0].several);
  EXPECT_THAT(subjects(place->out_of_order[0].skipped),
              ElementsAre("layers.0", "layers.1", "layers.2", "layers.0", "layers.1", "layers.2"));
  EXPECT_FALSE(place_of(hang, {order()})->out_of_order[0].several);
}

TEST(HangPlace, KeepsThePlacesInThePhaseOfATrace) {
  const Hang hang = hang_of({timeout(0, 5, 101)});
  EXPECT_EQ(place_of(hang, {order_of_two()})->candidates.size(), 2u);
  const WaitedPlace second{"forward", 1}, nowhere{"backward", 1};
  const auto place = place_of(hang, {order_of_two()}, &second);
  ASSERT_EQ(place->candidates.size(), 1u);
  EXPECT_EQ(place->candidates[0].micro_batch, 1);
  EXPECT_EQ(place_of(hang, {order_of_two()}, &nowhere)->candidates.size(), 2u);
}

TEST(HangPlace, IsNoneForCollectivesOfAnotherJob) {
  EXPECT_FALSE(place_of(hang_of({timeout(0, 4, 17)}), {order()}));
  EXPECT_FALSE(place_of(hang_of({state(0, 4, 5, 3)}), {order()}));
}

TEST(HangPlace, MatchesGathersOfBytesAndOldNames) {
  CollectiveOrder mixed = order();
  mixed.step.resize(1);
  EXPECT_TRUE(may_be({"_ALLGATHER_BASE", 200, 800}, mixed.step[0]));  // as bytes
  EXPECT_TRUE(may_be({"ALLGATHER", {}, {}}, mixed.step[0]));
  EXPECT_FALSE(may_be({"ALLREDUCE", 100, 400}, mixed.step[0]));
  EXPECT_FALSE(may_be({"_ALLGATHER_BASE", 100, 401}, mixed.step[0]));
}

TEST(RanksText, ShowsRuns) { EXPECT_EQ(ranks_text({0, 1, 2, 5, 7, 8}), "0 to 2, 5, 7, 8"); }

}  // namespace
}  // namespace loom::explain
