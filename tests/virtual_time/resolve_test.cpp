// Promise: virtual time follows the rules of resolve.h to the ns: what overlaps, what is exposed, what the host, a
//          peer or the links hold up.
// World:   hand-made recordings on the tiny device (tests/support/tiny_profile.h).
#include "engine/virtual_time/resolve.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/exchange_stream.h"
#include "engine/virtual_time/breakdown.h"
#include "tests/support/tiny_profile.h"

namespace loom::virtual_time {
namespace {

using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

struct S {
  static constexpr device::StreamId kCompute = device::StreamId::kCompute, kH2D = device::StreamId::kH2D,
                                    kD2H = device::StreamId::kD2H, kGatherCopyIn{1, "gather_copy_in"},
                                    kGather = test::kGatherStream, kReduceScatter = test::kReduceScatterStream,
                                    kAllReduce{4, "all_reduce"};
};
using test::HandMade;
using test::tiny_profile;

const std::vector<int> kPair{0, 1};

VirtualTimes resolve_one(const HandMade& made, const HardwareProfile& profile = tiny_profile(),
                         HostCosts costs = HostCosts::kCounted) {
  const TimeModel model(profile);
  const device::Recording recording = made.recording();
  const RankRecording rank{0, &recording};
  return resolve({&rank, 1}, model, costs);
}

VirtualTimes resolve_all(const std::vector<const HandMade*>& made, const HardwareProfile& profile = tiny_profile()) {
  const TimeModel model(profile);
  std::vector<device::Recording> recordings;
  for (const HandMade* rank : made) recordings.push_back(rank->recording());
  std::vector<RankRecording> ranks;
  for (std::size_t r = 0; r < made.size(); ++r) ranks.push_back({static_cast<int>(r), &recordings[r]});
  return resolve(ranks, model);
}

std::vector<std::int64_t> starts(const RankTimes& rank) {
  std::vector<std::int64_t> all;
  for (const EntryTime& time : rank.entries) all.push_back(time.start);
  return all;
}

std::vector<std::int64_t> ends(const RankTimes& rank) {
  std::vector<std::int64_t> all;
  for (const EntryTime& time : rank.entries) all.push_back(time.end);
  return all;
}

TEST(VirtualTime, ItemsOfAStreamFollowOneAnother) {
  HandMade made;
  made.compute(10);
  made.compute(20);
  const VirtualTimes times = resolve_one(made);
  EXPECT_THAT(starts(times.ranks[0]), ElementsAre(0, 10));
  EXPECT_THAT(ends(times.ranks[0]), ElementsAre(10, 30));
  EXPECT_EQ(times.end_ns, 30);
}

TEST(VirtualTime, StreamsRunBesideOneAnotherUntilOneWaits) {
  HandMade made;
  const auto gather = made.gather(25, kPair);
  made.compute(10);
  made.wait(S::kCompute, gather);
  made.compute(10);  // begins when the gather is over, at 25
  EXPECT_EQ(resolve_one(made).end_ns, 35);
}

// A kernel of 10 beside a copy of 25: each at half its rate until 20, then the copy's last 15.
TEST(VirtualTime, KernelsOfSeveralStreamsShareTheCores) {
  HandMade made;
  made.copy(S::kGatherCopyIn, 25);
  made.compute(10);
  EXPECT_THAT(ends(resolve_one(made).ranks[0]), ElementsAre(35, 20));
}

TEST(VirtualTime, TheHostLinkTakesNothingFromTheCores) {
  HandMade made;
  made.to_host(25);  // at 0.5
  made.compute(10);
  EXPECT_THAT(ends(resolve_one(made).ranks[0]), ElementsAre(50, 10));
}

// Three groups: gather 10, compute 30 each, the next gather issued before the compute. 10 + 3 * 30.
TEST(VirtualTime, AGatherIssuedAheadIsHiddenAndTheFirstIsExposed) {
  HandMade made;
  std::int64_t gathered = made.gather(10, kPair);
  for (int group = 0; group < 3; ++group) {
    made.wait(S::kCompute, gathered);
    if (group < 2) gathered = made.gather(10, kPair);
    made.compute(30);
  }
  const VirtualTimes times = resolve_one(made);
  EXPECT_EQ(times.end_ns, 10 + 3 * 30);
  const Breakdown parts = break_down(made.recording(), times.ranks[0], 0, times.end_ns);
  EXPECT_EQ(parts.compute_ns, 90);
  EXPECT_EQ(parts.exposed_comm_ns, 10);
  EXPECT_EQ(parts.comm_ns, 30);
  EXPECT_EQ(parts.idle_ns, 0);
}

// The gather is longer than what hides it: each is exposed by 40 - 30, but for the first, by 40.
TEST(VirtualTime, AGatherLongerThanItsComputeIsExposedByTheDifference) {
  HandMade made;
  std::int64_t gathered = made.gather(40, kPair);
  for (int group = 0; group < 3; ++group) {
    made.wait(S::kCompute, gathered);
    if (group < 2) gathered = made.gather(40, kPair);
    made.compute(30);
  }
  const VirtualTimes times = resolve_one(made);
  EXPECT_EQ(times.end_ns, 3 * 40 + 30);
  EXPECT_EQ(break_down(made.recording(), times.ranks[0], 0, times.end_ns).exposed_comm_ns, 40 + 2 * (40 - 30));
}

// Backward of three groups: compute 30, reduce-scatter 20 behind it. 3 * 30 + 20.
TEST(VirtualTime, OnlyTheLastReduceScatterIsExposed) {
  HandMade made;
  for (int group = 0; group < 3; ++group) {
    const auto computed = made.compute(30);
    made.wait(S::kReduceScatter, computed);
    made.reduce(20, kPair);
  }
  const VirtualTimes times = resolve_one(made);
  EXPECT_EQ(times.end_ns, 3 * 30 + 20);
  EXPECT_EQ(break_down(made.recording(), times.ranks[0], 0, times.end_ns).exposed_comm_ns, 20);
}

// A gather of 40 beside a kernel of 10 that nothing waits for, then a reduction of 20, and one of 10 beside its last 5.
TEST(VirtualTime, ExposedCollectivesCountForTheirAxes) {
  HandMade made;
  made.gather(40, kPair);
  made.compute(10);
  const VirtualTimes times = resolve_one(made);
  device::Recording recording = made.recording();
  RankTimes rank = times.ranks[0];
  recording.texts.insert(recording.texts.end(), {"dp_shard", "tp"});
  const auto named = static_cast<std::int32_t>(recording.texts.size());
  recording.entries[0].axis = named - 2;
  device::Entry reduction = recording.entries[0];
  reduction.axis = named - 1;
  recording.entries.insert(recording.entries.end(), {reduction, recording.entries[0]});
  rank.entries.insert(rank.entries.end(), {EntryTime{40, 40, 60}, EntryTime{55, 55, 65}});
  EXPECT_THAT(exposed_by_axis(recording, rank, 0, 65),
              ElementsAre(AxisTime{"dp_shard", 40 - 10 + 5}, AxisTime{"tp", 20}));
  EXPECT_EQ(break_down(recording, rank, 0, 65).exposed_comm_ns, 40 - 10 + 5 + 20);
}

// Dispatch 50 a kernel of 20: the device waits for the host. 3 * 50 + 20.
TEST(VirtualTime, AHostThatIsSlowerThanTheDeviceDecides) {
  HandMade made;
  for (int i = 0; i < 3; ++i) made.compute(20);
  HardwareProfile profile = tiny_profile();
  profile.launch.dispatch_ns = 50;
  const VirtualTimes times = resolve_one(made, profile);
  EXPECT_THAT(starts(times.ranks[0]), ElementsAre(50, 100, 150));
  EXPECT_EQ(times.end_ns, 170);
  EXPECT_EQ(break_down(made.recording(), times.ranks[0], 0, 170).idle_ns, 170 - 60);
  EXPECT_EQ(resolve_one(made, profile, HostCosts::kFree).end_ns, 60) << "the device's own bound";
}

// Dispatch 5 a kernel of 20: only the first is waited for.
TEST(VirtualTime, AHostThatIsFasterThanTheDeviceIsHidden) {
  HandMade made;
  for (int i = 0; i < 3; ++i) made.compute(20);
  HardwareProfile profile = tiny_profile();
  profile.launch.dispatch_ns = 5;
  EXPECT_EQ(resolve_one(made, profile).end_ns, 5 + 60);
}

TEST(VirtualTime, TheHostPaysByWhatItIssues) {
  HandMade made;
  made.kernel("linear", {.unit = device::Unit::kMatrix});                                   // 1 + 10
  made.gather(10, kPair);                                                                   // 100
  made.wait(S::kCompute, made.log().last_of(S::kGather));                                   // 1000
  made.collective(device::kExchangeStream, device::CollectiveKind::kAllGather, 20, kPair);  // 1: of an operator
  HardwareProfile profile = tiny_profile();
  profile.launch = {.dispatch_ns = 1, .library_ns = 10, .collective_ns = 100, .stream_wait_ns = 1000};
  const VirtualTimes times = resolve_one(made, profile);
  EXPECT_EQ(times.ranks[0].entries[0].issued, 11);
  EXPECT_EQ(times.ranks[0].entries[1].issued, 111);
  EXPECT_EQ(times.ranks[0].entries[2].issued, 1111);
  EXPECT_EQ(times.ranks[0].entries[3].issued, 1112);
  EXPECT_EQ(times.ranks[0].host_end_ns, 1112);
}

TEST(VirtualTime, TheHostWaitsForTheDeviceAndWorksItself) {
  HandMade made;
  const auto kernel = made.compute(40);
  made.log().add_host_wait(kernel);
  made.log().add_host_work("adamw", {.read_bytes = 25});
  made.compute(5);
  const VirtualTimes times = resolve_one(made);
  EXPECT_THAT(starts(times.ranks[0]), ElementsAre(0, 0, 40, 65));
  EXPECT_THAT(ends(times.ranks[0]), ElementsAre(40, 40, 65, 70));
  EXPECT_EQ(resolve_one(made, tiny_profile(), HostCosts::kFree).end_ns, 70) << "its own work is no dispatch";
}

TEST(VirtualTime, MarksSayWhereHostComputeAndDeviceStand) {
  HandMade made;
  made.compute(40);
  made.to_host(30);
  made.phase("backward");
  made.compute(10);
  made.phase("end");
  HardwareProfile profile = tiny_profile();
  profile.launch.dispatch_ns = 1;
  const auto phases = resolve_one(made, profile).ranks[0].phases;
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].host_ns, 2);
  EXPECT_EQ(phases[0].compute_ns, 41);
  EXPECT_EQ(phases[0].device_ns, 62);
  EXPECT_EQ(phases[1].compute_ns, 51);
}

TEST(VirtualTime, WhatIsOlderThanTheRecordingIsOver) {
  HandMade made;
  const auto before = made.compute(100);
  made.begin_again();
  made.wait(S::kGather, before);
  made.log().add_host_wait(before);
  made.compute(10);
  EXPECT_EQ(resolve_one(made).end_ns, 10);
}

// Rank 0 is ready at 10, rank 1 at 70: both have their result at 70 + 20.
TEST(VirtualTime, ACollectiveStartsWhenItsLastMemberIsReady) {
  HandMade fast, slow;
  for (auto [made, ns] : {std::pair{&fast, 10}, std::pair{&slow, 70}}) {
    const auto computed = made->compute(ns);
    made->wait(S::kReduceScatter, computed);
    made->reduce(20, kPair);
  }
  const VirtualTimes times = resolve_all({&fast, &slow});
  for (const RankTimes& rank : times.ranks) {
    EXPECT_EQ(rank.entries[2].start, 70);
    EXPECT_EQ(rank.entries[2].end, 90);
  }
  EXPECT_EQ(break_down(fast.recording(), times.ranks[0], 0, 90).idle_ns, 60) << "waits for its peer";
}

TEST(VirtualTime, MembersThatAreNotHereAreAlike) {
  HandMade made;
  made.compute(10);
  made.wait(S::kReduceScatter, made.log().last_of(S::kCompute));
  made.reduce(20, kPair);
  EXPECT_EQ(resolve_one(made).end_ns, 30);
}

// Four ranks on two nodes: the shard axis {0, 1} stays inside a node, the replicate axis {0, 2} crosses. 100 bytes:
// reduce-scatter 100 / 2 at 1 byte/ns, all-reduce of 50 bytes 2 * 50 / 2 at half a byte/ns.
TEST(VirtualTime, TheReplicateAxisPaysForTheLinksBetweenNodes) {
  const std::vector<int> shard{0, 1}, replicate{0, 2};
  HandMade made;
  made.collective(S::kReduceScatter, device::CollectiveKind::kReduceScatter, 100, shard);
  made.wait(S::kAllReduce, made.log().last_of(S::kReduceScatter));
  made.collective(S::kAllReduce, device::CollectiveKind::kAllReduce, 50, replicate);
  EXPECT_THAT(ends(resolve_one(made).ranks[0]), ElementsAre(50, 50, 50 + 100));
}

// Compute loses a fifth while the gather of 50 runs: 40 of its 100 are done by then, 60 remain.
TEST(VirtualTime, ComputeIsSlowerWhileACollectiveRuns) {
  HandMade made;
  made.gather(50, kPair);
  made.compute(100);
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0].compute_slowdown = 0.2;
  EXPECT_THAT(ends(resolve_one(made, profile).ranks[0]), ElementsAre(50, 50 + 60));
}

// The gather begins while the kernel runs: 30 at full rate, 50 at 0.8, the remaining 30 at full rate.
// Of four nodes, 1 / (1 + 0.25 * 2) of the rate; the ranks of one node lose nothing.
TEST(VirtualTime, TheSlowestOfMoreNodesDecides) {
  HardwareProfile profile = tiny_profile();
  profile.links.loss_per_doubling = 0.25;
  const auto compute_end = [&](const std::vector<int>& group) {
    HandMade rank;
    rank.compute(100);
    rank.collective(S::kGather, device::CollectiveKind::kAllGather, 8, group);
    return resolve_one(rank, profile).ranks[0].entries[0].end;
  };
  EXPECT_EQ(compute_end({0, 1}), 100);
  EXPECT_EQ(compute_end({0, 1, 2, 3}), 125);
  EXPECT_EQ(compute_end({0, 2, 4, 6}), 150);
}

TEST(VirtualTime, AKernelSlowsDownInItsMiddle) {
  HandMade made;
  made.to_device(30);
  made.wait(S::kGather, made.log().last_of(S::kH2D));
  made.gather(50, kPair);
  made.compute(100);
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0].compute_slowdown = 0.2;
  EXPECT_EQ(resolve_one(made, profile).ranks[0].entries[3].end, 30 + 50 + 30);
}

// Two collectives on one link take twice as long while both run: 20 each way until the short one has its 10, then 10.
TEST(VirtualTime, CollectivesShareTheirLinks) {
  HandMade made;
  made.gather(20, kPair);
  made.reduce(10, kPair);
  EXPECT_THAT(ends(resolve_one(made).ranks[0]), ElementsAre(30, 20));
}

TEST(VirtualTime, CollectivesOnDifferentLinksDoNotMeet) {
  const std::vector<int> replicate{0, 2};
  HandMade made;
  made.gather(20, kPair);
  made.collective(S::kAllReduce, device::CollectiveKind::kAllReduce, 10, replicate);  // 10 / 0.5
  EXPECT_THAT(ends(resolve_one(made).ranks[0]), ElementsAre(20, 20));
}

TEST(VirtualTime, RanksThatDisagreeAreNamed) {
  HandMade a, b;
  a.gather(20, kPair);
  b.gather(30, kPair);
  EXPECT_THAT(
      [&] {
        resolve_all({&a, &b});
      },
      ThrowsMessage<InvariantError>(
          StrEq("internal: collective '' of 60 bytes on rank 1 meets another collective of 40 bytes in ranks "
                "0,1")));
}

// 40 bytes of the first rank, 100 of the second: half of 100 at a byte/ns, whoever comes last.
TEST(VirtualTime, AnAllToAllTakesAsLongAsItsMostLoadedRank) {
  HandMade few, many;
  few.collective(S::kCompute, device::CollectiveKind::kAllToAll, 40, kPair);
  many.collective(S::kCompute, device::CollectiveKind::kAllToAll, 100, kPair);
  EXPECT_EQ(resolve_all({&few, &many}).end_ns, 50);
  EXPECT_EQ(resolve_all({&many, &few}).end_ns, 50);
}

// The second rank computes for 30; then a message of 20 bytes at a byte/ns.
TEST(VirtualTime, AMessageWaitsForBothOfItsRanks) {
  HandMade sender, receiver;
  sender.collective(S::kCompute, device::CollectiveKind::kSendRecv, 20, kPair);
  receiver.compute(30);
  receiver.collective(S::kCompute, device::CollectiveKind::kSendRecv, 20, kPair);
  const VirtualTimes times = resolve_all({&sender, &receiver});
  EXPECT_THAT(ends(times.ranks[0]), ElementsAre(50));
  EXPECT_THAT(ends(times.ranks[1]), ElementsAre(30, 50));
}

constexpr device::StreamId kSend{8, "send"}, kReceive{9, "receive"};
const std::vector<int> kThere{0, 1}, kBack{1, 0};

// The sender computes for 30 before it sends, on a stream of its own; the receiver computes on.
TEST(VirtualTime, MessagesMeetByTheirDirectionWhateverTheStream) {
  HandMade sender, receiver;
  sender.wait(kSend, sender.compute(30));
  sender.collective(kSend, device::CollectiveKind::kMessage, 20, kThere);
  sender.compute(10);
  const auto message = receiver.collective(kReceive, device::CollectiveKind::kMessage, 20, kThere);
  receiver.compute(5);
  receiver.wait(S::kCompute, message);
  receiver.compute(7);
  const VirtualTimes times = resolve_all({&sender, &receiver});
  EXPECT_THAT(ends(times.ranks[0]), ElementsAre(30, 30, 50, 40));
  EXPECT_THAT(starts(times.ranks[1]), ElementsAre(30, 0, 5, 50));
  EXPECT_THAT(ends(times.ranks[1]), ElementsAre(50, 5, 50, 57)) << "the wait lasts from 5 to 50";
}

// A byte a ns each way; two of one direction have half of it each.
TEST(VirtualTime, MessagesOfBothDirectionsDoNotSlowEachOtherDown) {
  const auto exchange = [](const std::vector<int>& second) {
    HandMade a, b;
    a.collective(kSend, device::CollectiveKind::kMessage, 20, kThere);
    a.collective(S::kAllReduce, device::CollectiveKind::kMessage, 20, second);
    b.collective(kReceive, device::CollectiveKind::kMessage, 20, kThere);
    b.collective(S::kAllReduce, device::CollectiveKind::kMessage, 20, second);
    return resolve_all({&a, &b}).end_ns;
  };
  EXPECT_EQ(exchange(kBack), 20);
  EXPECT_EQ(exchange(kThere), 40);
}

TEST(VirtualTime, APeerThatNeverComesIsAnErrorNotAHang) {
  HandMade a, b;
  a.gather(20, kPair);
  b.compute(5);
  EXPECT_THAT(
      [&] {
        resolve_all({&a, &b});
      },
      ThrowsMessage<InvariantError>(
          StrEq("internal: virtual time cannot advance: rank 0 is at collective '', and its peers never "
                "come")));
}

// Returned as a recording: by hand it is made in one place.
device::Recording long_step(int groups) {
  HandMade made;
  std::int64_t gathered = made.gather(37, kPair);
  for (int group = 0; group < groups; ++group) {
    made.wait(S::kCompute, gathered);
    gathered = made.gather(37, kPair);
    for (int kernel = 0; kernel < 15; ++kernel) made.compute(3 + kernel % 5);
    made.wait(S::kReduceScatter, made.log().last_of(S::kCompute));
    made.reduce(21, kPair);
  }
  return made.recording();
}

VirtualTimes resolve_one(const device::Recording& recording, const HardwareProfile& profile = tiny_profile()) {
  const TimeModel model(profile);
  const RankRecording rank{0, &recording};
  return resolve({&rank, 1}, model);
}

TEST(VirtualTime, IsTheSameEveryTime) {
  const device::Recording made = long_step(50);
  HardwareProfile profile = tiny_profile();
  profile.links.levels[0].compute_slowdown = 0.07;
  const VirtualTimes first = resolve_one(made, profile);
  for (int again = 0; again < 3; ++again) {
    const VirtualTimes times = resolve_one(made, profile);
    EXPECT_EQ(starts(times.ranks[0]), starts(first.ranks[0]));
    EXPECT_EQ(ends(times.ranks[0]), ends(first.ranks[0]));
  }
}

// --- Times that 64 bits do not hold

TEST(VirtualTime, OfAnItemBeyondAllMeasureIsRefusedAndNeverWraps) {
  HardwareProfile slow = tiny_profile();
  slow.memory.bandwidth_bytes_per_s = slow.vector.flops_per_s = 1e-6;
  HandMade made;
  made.compute(10);
  EXPECT_THAT([&] { resolve_one(made, slow); },
              ThrowsMessage<DeviceError>(
                  StrEq("one kernel or collective takes 1e+07 s of virtual time, above the 1.13e+06 s that can be "
                        "counted; use smaller sizes, or a device profile with higher rates")));
}

TEST(VirtualTime, OfAStepBeyondAllMeasureIsRefusedAndNeverWraps) {
  HandMade made;
  for (int item = 0; item < 5000; ++item) made.compute((std::int64_t{1} << 50) - 1000);
  EXPECT_THAT([&] { resolve_one(made); },
              ThrowsMessage<DeviceError>(StrEq("the step takes more than 146 years of virtual time; use smaller sizes, "
                                               "or a device profile with higher rates")));
}

}  // namespace
}  // namespace loom::virtual_time
