// Promise: the coordinator's decisions follow from events and their times alone.
// World:   agents 0, 1, ... of a job of two to three nodes; time is a number.
#include "engine/launcher/rendezvous.h"

#include <gmock/gmock.h>

namespace loom::launcher {
namespace {

using ::testing::HasSubstr;

constexpr auto kTime = [](int ms) { return Rendezvous::Time(Milliseconds(ms)); };

Options job_of(NodeRange nodes, int restarts = 0) {
  Options options{.version = "1"};
  options.nodes = nodes;
  options.max_restarts = restarts;
  options.times.join = Milliseconds(1000);
  options.times.last_call = Milliseconds(100);
  return options;
}

Join agent(int node_rank, NodeRange nodes, int workers = 1) {
  return {.tool = "torchrun",
          .version = "1",
          .run_id = "none",
          .host = "host" + std::to_string(node_rank),
          .role = "default",
          .least = nodes.least,
          .most = nodes.most,
          .workers = workers,
          .node_rank = node_rank};
}

template <class Wanted>
std::map<int, Wanted> sent(Rendezvous& rendezvous) {
  std::map<int, Wanted> found;
  for (const auto& [to, message] : rendezvous.take_messages()) {
    if (const auto* wanted = std::get_if<Wanted>(&message)) found[to] = *wanted;
  }
  return found;
}

TEST(Rendezvous, StartsAtOnceWhenTheMostHaveJoined) {
  Rendezvous rendezvous(job_of({2, 3}), kTime(0));
  rendezvous.joined(0, agent(2, {2, 3}, 4), kTime(1));
  rendezvous.joined(1, agent(0, {2, 3}, 2), kTime(2));
  EXPECT_EQ(rendezvous.attempts(), 0);
  rendezvous.joined(2, agent(1, {2, 3}), kTime(3));
  auto assigned = sent<Assigned>(rendezvous);
  EXPECT_EQ(assigned[1].first_rank, 0);
  EXPECT_EQ(assigned[2].first_rank, 2);
  EXPECT_EQ(assigned[0].first_rank, 3);
  EXPECT_EQ(assigned[0].node, 2);
  EXPECT_EQ(assigned[0].world_size, 7);
}

TEST(Rendezvous, TheLastCallBeginsAnewWithEachNode) {
  Rendezvous rendezvous(job_of({1, 3}), kTime(0));
  rendezvous.joined(0, agent(0, {1, 3}), kTime(0));
  rendezvous.tick(kTime(90));
  rendezvous.joined(1, agent(1, {1, 3}), kTime(90));
  rendezvous.tick(kTime(150));
  EXPECT_EQ(rendezvous.attempts(), 0);
  rendezvous.tick(kTime(190));
  EXPECT_EQ(sent<Assigned>(rendezvous).size(), 2U);
}

// Two nodes that run, each with a worker.
Rendezvous running(int restarts, NodeRange nodes = {2, 2}) {
  Rendezvous rendezvous(job_of(nodes, restarts), kTime(0));
  rendezvous.joined(0, agent(0, nodes), kTime(0));
  rendezvous.joined(1, agent(1, nodes), kTime(0));
  rendezvous.tick(kTime(200));
  EXPECT_EQ(sent<Assigned>(rendezvous).size(), 2U);
  return rendezvous;
}

TEST(Rendezvous, TheFirstFailureByTimeIsReported) {
  Rendezvous rendezvous = running(0);
  rendezvous.received(0, Failure{.rank = 0, .exit_code = 1, .unix_ms = 2000, .host = "a"}, kTime(300));
  EXPECT_EQ(sent<Stop>(rendezvous).size(), 2U);
  rendezvous.received(1, Failure{.rank = 1, .exit_code = 7, .unix_ms = 1000, .host = "b"}, kTime(301));
  rendezvous.received(0, Stopped{}, kTime(302));
  EXPECT_FALSE(sent<End>(rendezvous).contains(0));
  rendezvous.received(1, Stopped{}, kTime(303));
  const auto ends = sent<End>(rendezvous);
  EXPECT_EQ(ends.at(0).status, 1);
  EXPECT_THAT(ends.at(1).report, ::testing::StartsWith("rank 1 (local rank 0 on b) ended with exit code 7"));
  EXPECT_TRUE(rendezvous.ending());
}

TEST(Rendezvous, AnAgentThatDoesNotConfirmIsLost) {
  Rendezvous rendezvous = running(1, {1, 2});
  rendezvous.received(0, Failure{.rank = 0, .exit_code = 1}, kTime(300));
  rendezvous.received(0, Stopped{}, kTime(301));
  rendezvous.tick(kTime(300 + 30'000 + 30'000));
  rendezvous.tick(kTime(300 + 60'000 + 100));
  const auto assigned = sent<Assigned>(rendezvous);
  ASSERT_EQ(assigned.size(), 1U);
  EXPECT_EQ(assigned.at(0).restarts, 1);
  EXPECT_EQ(assigned.at(0).world_size, 1);
}

TEST(Rendezvous, AFailureOfAnEarlierStartIsNone) {
  Rendezvous rendezvous = running(1);
  rendezvous.received(0, Failure{.attempt = 0, .rank = 0, .exit_code = 1}, kTime(300));
  rendezvous.received(0, Stopped{}, kTime(301));
  rendezvous.received(1, Stopped{}, kTime(302));
  EXPECT_EQ(sent<Assigned>(rendezvous).size(), 2U);
  rendezvous.received(1, Failure{.attempt = 0, .rank = 1, .exit_code = 1}, kTime(303));
  EXPECT_TRUE(sent<Stop>(rendezvous).empty());
}

TEST(Rendezvous, EndsWhenAllHaveSucceeded) {
  Rendezvous rendezvous = running(0);
  rendezvous.received(0, Succeeded{0}, kTime(300));
  rendezvous.lost(0, "it closed the connection", kTime(301));  // it had nothing left to do
  rendezvous.received(1, Succeeded{0}, kTime(302));
  EXPECT_EQ(sent<End>(rendezvous).at(1).status, 0);
}

TEST(Rendezvous, NodesWithAndWithoutNumbersDoNotMix) {
  Rendezvous rendezvous(job_of({2, 2}), kTime(0));
  rendezvous.joined(0, agent(0, {2, 2}), kTime(0));
  rendezvous.joined(1, agent(-1, {2, 2}), kTime(0));
  EXPECT_THAT(sent<Refused>(rendezvous).at(1).reason, HasSubstr("given on some nodes and not on others"));
}

TEST(Rendezvous, MissingNodesWithoutNumbersAreCounted) {
  Rendezvous rendezvous(job_of({3, 3}), kTime(0));
  rendezvous.joined(0, agent(-1, {3, 3}), kTime(0));
  rendezvous.tick(kTime(1000));
  EXPECT_THAT(sent<End>(rendezvous).at(0).report, HasSubstr("1 of 3 nodes joined within 1 s; joined: host-1; start"));
}

}  // namespace
}  // namespace loom::launcher
