// Promise: a rank that throws, ends, stalls or differs ends every wait for it with a text that says which, where and
//          why; nothing hangs.
// World:   2 to 4 ranks as threads; a deadline of 200 ms where one must pass, of a minute where none may.

#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <latch>
#include <map>
#include <mutex>

#include "engine/comm/local/inprocess.h"
#include "engine/core/error.h"
#include "engine/launch/run_ranks.h"

namespace loom::comm {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr CommOptions kPatient{.timeout = std::chrono::minutes(1)};
constexpr CommOptions kHasty{.timeout = std::chrono::milliseconds(200)};

constexpr Lane kGatherLane{1};
constexpr Lane kReduceScatterLane{2};
constexpr Lane kAllReduceLane{3};
constexpr Lane kPairLane{4};

std::shared_ptr<ProcessGroup> everyone(World& world) { return world.everyone("shard"); }

using Texts = std::map<int, std::string>;

// Runs `main` on every rank; what each rank's CommError says.
Texts texts_of(int ranks, const CommOptions& options, const launch::RankMain& main) {
  Texts texts;
  std::mutex mutex;
  const auto note = [&](RankContext& context, World& world) {
    try {
      main(context, world);
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex);
      texts[context.rank()] = error.what();
      throw;
    }
  };
  try {
    launch::run_ranks(ranks, options, note);
  } catch (const Error&) {
  }
  return texts;
}

void gather_one(ProcessGroup& group, const char* tag) {
  std::int32_t shard = 1;
  std::vector<std::int32_t> full(static_cast<std::size_t>(group.size()));
  const GatherPart part{&shard, full.data(), sizeof shard};
  group.all_gather(kGatherLane, {&part, 1}, tag);
}

TEST(AThrowingRank, EndsItsPeersWaitsWithItsMessage) {
  const Texts texts = texts_of(3, kPatient, [](RankContext& context, World& world) {
    const auto group = everyone(world);
    if (context.rank() == 0) raise<DeviceError>("no room");
    gather_one(*group, "layers.3");
  });
  EXPECT_THAT(texts,
              ElementsAre(Pair(1,
                               "[rank 1] all_gather 'layers.3' in group 'shard' (ranks 0,1,2): rank 0 failed first: "
                               "[rank 0] no room"),
                          Pair(2,
                               "[rank 2] all_gather 'layers.3' in group 'shard' (ranks 0,1,2): rank 0 failed first: "
                               "[rank 0] no room")));
}

TEST(AThrowingRank, HasItsOwnExceptionRethrown) {
  const auto main = [](RankContext& context, World& world) {
    const auto group = everyone(world);
    if (context.rank() == 2) raise<OutOfMemoryError>("no room");
    group->barrier(kHostLane, "end");
  };
  EXPECT_THROW(launch::run_ranks(4, kPatient, main), OutOfMemoryError);
}

TEST(AThrowingRank, EndsWaitsInGroupsItIsNotIn) {
  const Texts texts = texts_of(3, kPatient, [](RankContext& context, World& world) {
    const auto group = world.split(context.rank() == 0 ? World::kNoColor : 0, context.rank(), "pair", {});
    if (context.rank() == 0) raise<DeviceError>("no room");
    if (context.rank() == 1) group->barrier(kHostLane, "pair only");
    if (context.rank() == 2) {
      try {
        everyone(world);  // rank 0 never comes
      } catch (const CommError&) {
        group->barrier(kHostLane, "too late");
      }
    }
  });
  EXPECT_THAT(texts, ElementsAre(Pair(1,
                                      "[rank 1] barrier 'pair only' in group 'pair' (ranks 1,2): rank 0 failed first: "
                                      "[rank 0] no room"),
                                 Pair(2,
                                      "[rank 2] barrier 'too late' in group 'pair' (ranks 1,2): rank 0 failed first: "
                                      "[rank 0] no room")));
}

TEST(AFailure, IsTheCauseThatEveryLaterCallNames) {
  const Texts texts = texts_of(2, kPatient, [](RankContext& context, World& world) {
    const auto group = everyone(world);
    if (context.rank() == 0) raise<DeviceError>("no room");
    for (const char* tag : {"first", "second"}) {
      try {
        gather_one(*group, tag);
      } catch (const CommError&) {
      }
    }
    std::int32_t value = 0;
    group->all_reduce(kAllReduceLane, &value, 1, DType::kI32, ReduceOp::sum(), "third");
  });
  EXPECT_THAT(texts, ElementsAre(Pair(1,
                                      "[rank 1] all_reduce 'third' in group 'shard' (ranks 0,1): rank 0 failed first: "
                                      "[rank 0] no room")));
}

TEST(AFailure, IsTheFirstInTimeAndNamedOnce) {
  std::latch told(1);
  const Texts texts = texts_of(3, kPatient, [&](RankContext& context, World& world) {
    const auto group = everyone(world);
    if (context.rank() == 0) raise<DeviceError>("no room");
    try {
      group->barrier(kHostLane, "a");
    } catch (const CommError& error) {
      world.fail(error.what());
      if (context.rank() == 1) {
        told.count_down();
        throw;
      }
    }
    told.wait();
    group->barrier(kHostLane, "b");
  });
  EXPECT_EQ(texts.at(2), "[rank 2] barrier 'b' in group 'shard' (ranks 0,1,2): rank 0 failed first: [rank 0] no room");
}

// Rank 0 last gathers 'layers.2' and then holds still until its peers have given up.
TEST(AStalledRank, IsNamedWithWhatItLastEntered) {
  std::latch given_up(2);
  const Texts texts = texts_of(3, kHasty, [&](RankContext& context, World& world) {
    const auto group = everyone(world);
    gather_one(*group, "layers.2");
    if (context.rank() == 0) {
      given_up.wait();
      return;
    }
    try {
      std::vector<float> input(3);
      float output = 0;
      group->reduce_scatter(kReduceScatterLane, input.data(), &output, 1, DType::kF32, ReduceOp::avg(), "layers.3");
    } catch (...) {
      given_up.count_down();
      throw;
    }
  });
  const std::string cause =
      " reduce_scatter 'layers.3' in group 'shard' (ranks 0,1,2): rank 0 did not come within 200 ms (it last entered "
      "all_gather "
      "'layers.2'); raise --distributed-timeout-minutes or look at rank 0";
  EXPECT_THAT(texts, ElementsAre(Pair(1, "[rank 1]" + cause), Pair(2, "[rank 2]" + cause)));
}

TEST(AStalledRank, LearnsAtItsNextCallThatItWasGivenUp) {
  std::promise<void> given_up;
  const Texts texts = texts_of(2, kHasty, [&](RankContext& context, World& world) {
    const auto group = everyone(world);
    if (context.rank() == 1) {
      given_up.get_future().wait();
      group->barrier(kHostLane, "late");
      return;
    }
    try {
      group->barrier(kHostLane, "start");
    } catch (...) {
      given_up.set_value();
      throw;
    }
  });
  const std::string first =
      "[rank 0] barrier 'start' in group 'shard' (ranks 0,1): rank 1 did not come within 200 ms (it last entered "
      "making of groups 'shard'); raise --distributed-timeout-minutes or look at rank 1";
  EXPECT_THAT(texts, ElementsAre(Pair(0, first),
                                 Pair(1, "[rank 1] barrier 'late' in group 'shard' (ranks 0,1): rank 0 failed first: " +
                                             first)));
}

TEST(StalledRanks, AreAllNamed) {
  std::latch given_up(1);
  const Texts texts = texts_of(3, kHasty, [&](RankContext& context, World& world) {
    if (context.rank() != 1) {
      given_up.wait();
      return;
    }
    try {
      everyone(world);
    } catch (...) {
      given_up.count_down();
      throw;
    }
  });
  EXPECT_THAT(texts,
              ElementsAre(Pair(1,
                               "[rank 1] making of groups 'shard' in group 'world' (ranks 0,1,2): ranks 0,2 "
                               "did not come within 200 ms (rank 0: it has entered no collective; rank 2: it has "
                               "entered no collective); raise --distributed-timeout-minutes or look at ranks 0,2")));
}

TEST(AnEndedRank, IsNotWaitedFor) {
  const Texts texts = texts_of(2, kPatient, [](RankContext& context, World& world) {
    const auto group = everyone(world);
    group->barrier(kHostLane, "step 9");
    if (context.rank() == 1) group->barrier(kHostLane, "step 10");
  });
  EXPECT_THAT(texts, ElementsAre(Pair(
                         1,
                         "[rank 1] barrier 'step 10' in group 'shard' (ranks 0,1): rank 0 has ended without it (it "
                         "last entered barrier 'step 9'); all members must make the same calls in the same order")));
}

// Both ranks make one call each; the texts of both.
Texts differing(const std::function<void(ProcessGroup&)>& rank0, const std::function<void(ProcessGroup&)>& rank1) {
  return texts_of(2, kPatient, [&](RankContext& context, World& world) {
    const auto group = everyone(world);
    (context.rank() == 0 ? rank0 : rank1)(*group);
  });
}

auto reduce(std::int64_t elems, DType dtype, ReduceOp op) {
  return [=](ProcessGroup& group) {
    std::vector<double> data(64);
    group.all_reduce(kHostLane, data.data(), elems, dtype, op, "grads");
  };
}

std::string both(const std::string& text) { return text + "; all members must make the same calls in the same order"; }

constexpr const char* kRank0 = "[rank 0] all_reduce 'grads' in group 'shard' (ranks 0,1): ";
constexpr const char* kRank1 = "[rank 1] all_reduce 'grads' in group 'shard' (ranks 0,1): ";

TEST(DifferingMembers, AreToldTheKind) {
  const auto barrier = [](ProcessGroup& group) { group.barrier(kHostLane, "grads"); };
  EXPECT_THAT(
      differing(reduce(1, DType::kF32, ReduceOp::sum()), barrier),
      ElementsAre(
          Pair(0, both(std::string(kRank0) + "rank 0 asks for all_reduce 'grads', rank 1 for barrier 'grads'")),
          Pair(1, both("[rank 1] barrier 'grads' in group 'shard' (ranks 0,1): rank 1 asks for barrier 'grads', "
                       "rank 0 for all_reduce 'grads'"))));
}

TEST(DifferingMembers, AreToldTheTag) {
  EXPECT_THAT(
      differing([](ProcessGroup& group) { group.barrier(kHostLane, "a"); },
                [](ProcessGroup& group) { group.barrier(kHostLane, "b"); }),
      ElementsAre(
          Pair(0, both("[rank 0] barrier 'a' in group 'shard' (ranks 0,1): rank 0 asks for barrier 'a', rank 1 for "
                       "barrier 'b'")),
          Pair(1, both("[rank 1] barrier 'b' in group 'shard' (ranks 0,1): rank 1 asks for barrier 'b', rank 0 for "
                       "barrier 'a'"))));
}

TEST(DifferingMembers, AreToldTheBytes) {
  EXPECT_THAT(differing(reduce(4, DType::kF32, ReduceOp::sum()), reduce(8, DType::kF32, ReduceOp::sum())),
              ElementsAre(Pair(0, both(std::string(kRank0) + "rank 0 asks for 16 bytes, rank 1 for 32 bytes")),
                          Pair(1, both(std::string(kRank1) + "rank 1 asks for 32 bytes, rank 0 for 16 bytes"))));
}

TEST(DifferingMembers, AreToldTheDtype) {
  EXPECT_THAT(differing(reduce(4, DType::kF32, ReduceOp::sum()), reduce(8, DType::kBF16, ReduceOp::sum())),
              ElementsAre(Pair(0, both(std::string(kRank0) + "rank 0 asks for fp32, rank 1 for bf16")),
                          Pair(1, both(std::string(kRank1) + "rank 1 asks for bf16, rank 0 for fp32"))));
}

TEST(DifferingMembers, AreToldTheOperation) {
  EXPECT_THAT(differing(reduce(4, DType::kF32, ReduceOp::avg()), reduce(4, DType::kF32, ReduceOp::premul_sum(0.5))),
              ElementsAre(Pair(0, both(std::string(kRank0) + "rank 0 asks for avg, rank 1 for premul_sum(0.5)")),
                          Pair(1, both(std::string(kRank1) + "rank 1 asks for premul_sum(0.5), rank 0 for avg"))));
  EXPECT_THAT(differing(reduce(4, DType::kF32, ReduceOp::max()), reduce(4, DType::kF32, ReduceOp::sum())),
              ElementsAre(Pair(0, both(std::string(kRank0) + "rank 0 asks for max, rank 1 for sum")),
                          Pair(1, both(std::string(kRank1) + "rank 1 asks for sum, rank 0 for max"))));
}

TEST(DifferingMembers, AreToldTheRoot) {
  const auto broadcast = [](int root) {
    return [root](ProcessGroup& group) {
      int value = 0;
      group.broadcast(kHostLane, &value, sizeof value, root, "seed");
    };
  };
  EXPECT_THAT(
      differing(broadcast(0), broadcast(1)),
      ElementsAre(
          Pair(0, both("[rank 0] broadcast 'seed' in group 'shard' (ranks 0,1): rank 0 asks for root 0, rank 1 for "
                       "root 1")),
          Pair(1, both("[rank 1] broadcast 'seed' in group 'shard' (ranks 0,1): rank 1 asks for root 1, rank 0 for "
                       "root 0"))));
}

TEST(DifferingMembers, AreToldThatTheirPartsDiffer) {
  const auto gather = [](std::size_t first, std::size_t second) {
    return [=](ProcessGroup& group) {
      std::vector<std::byte> full(64);
      const GatherPart parts[] = {{full.data(), full.data(), first}, {full.data() + 32, full.data() + 32, second}};
      group.all_gather(kHostLane, parts, "w");
    };
  };
  EXPECT_THAT(
      differing(gather(4, 8), gather(8, 4)),
      ElementsAre(
          Pair(0,
               "[rank 0] all_gather 'w' in group 'shard' (ranks 0,1): ranks 0 and 1 cut the 12 bytes into different "
               "parts; all members must give the same parts"),
          Pair(1,
               "[rank 1] all_gather 'w' in group 'shard' (ranks 0,1): ranks 1 and 0 cut the 12 bytes into different "
               "parts; all members must give the same parts")));
}

// Everyone in all_to_all, with bytes[from][to].
auto exchange_bytes(const std::vector<std::vector<std::size_t>>& sent,
                    const std::vector<std::vector<std::size_t>>& expected) {
  return [=](RankContext& context, World& world) {
    const auto group = everyone(world);
    std::vector<std::byte> memory(64);
    const auto me = static_cast<std::size_t>(context.rank());
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (std::size_t peer = 0; peer < sent.size(); ++peer) {
      sends.push_back({memory.data(), sent[me][peer]});
      receives.push_back({memory.data() + 32, expected[peer][me]});
    }
    group->all_to_all(kPairLane, sends, receives, "tokens");
  };
}

// Rank 0 sends 24 bytes to rank 2, which expects 16; rank 1 learns of it too.
TEST(DifferingMembers, AreToldTheBytesOfAnAllToAll) {
  const std::string cause =
      " all_to_all 'tokens' in group 'shard' (ranks 0,1,2): rank 0 sends 24 bytes to rank 2, which expects 16; sender "
      "and receiver must give the same bytes";
  EXPECT_THAT(
      texts_of(3, kPatient, exchange_bytes({{0, 8, 24}, {8, 0, 8}, {8, 8, 0}}, {{0, 8, 16}, {8, 0, 8}, {8, 8, 0}})),
      ElementsAre(Pair(0, "[rank 0]" + cause), Pair(1, "[rank 1]" + cause), Pair(2, "[rank 2]" + cause)));
}

auto sending(int to, std::size_t bytes, const char* tag) {
  return [=](ProcessGroup& group) {
    const std::vector<std::byte> memory(64);
    group.send(kPairLane, to, {memory.data(), bytes}, tag);
  };
}
auto receiving(int from, std::size_t bytes, const char* tag) {
  return [=](ProcessGroup& group) {
    std::vector<std::byte> memory(64);
    group.recv(kPairLane, from, {memory.data(), bytes}, tag);
  };
}
constexpr const char* kIn = " in group 'shard' (ranks 0,1): ";

TEST(DifferingMembers, AreToldTheBytesOfAMessage) {
  const std::string cause = std::string(kIn) +
                            "rank 0 sends 24 bytes to rank 1, which expects 16; sender and receiver must give the same "
                            "bytes";
  EXPECT_THAT(differing(sending(1, 24, "f 3"), receiving(0, 16, "f 3")),
              ElementsAre(Pair(0, "[rank 0] send 'f 3' to rank 1" + cause),
                          Pair(1, "[rank 1] recv 'f 3' from rank 0" + cause)));
}

TEST(DifferingMembers, AreToldTheTagOfAMessage) {
  EXPECT_THAT(differing(sending(1, 8, "f 3"), receiving(0, 8, "f 4")),
              ElementsAre(Pair(0, both("[rank 0] send 'f 3' to rank 1" + std::string(kIn) +
                                       "rank 0 asks for send 'f 3' to rank 1, rank 1 for recv 'f 4' from rank 0")),
                          Pair(1, both("[rank 1] recv 'f 4' from rank 0" + std::string(kIn) +
                                       "rank 1 asks for recv 'f 4' from rank 0, rank 0 for send 'f 3' to rank 1"))));
}

TEST(DifferingMembers, AreToldThatBothSend) {
  EXPECT_THAT(differing(sending(1, 8, "f 3"), sending(0, 8, "f 3")),
              ElementsAre(Pair(0, both("[rank 0] send 'f 3' to rank 1" + std::string(kIn) +
                                       "rank 0 asks for send 'f 3' to rank 1, rank 1 for send 'f 3' to rank 0")),
                          Pair(1, both("[rank 1] send 'f 3' to rank 0" + std::string(kIn) +
                                       "rank 1 asks for send 'f 3' to rank 0, rank 0 for send 'f 3' to rank 1"))));
}

// The rank in the collective waits for all; the one at the message knows what differs.
TEST(DifferingMembers, AreToldThatAMessageMeetsACollective) {
  const std::string found = both("[rank 0] send 'f 3' to rank 1" + std::string(kIn) +
                                 "rank 0 asks for send 'f 3' to rank 1, rank 1 for barrier 'end'");
  EXPECT_THAT(differing(sending(1, 8, "f 3"), [](ProcessGroup& group) { group.barrier(kPairLane, "end"); }),
              ElementsAre(Pair(0, found),
                          Pair(1, "[rank 1] barrier 'end'" + std::string(kIn) + "rank 0 failed first: " + found)));
}

TEST(AThrowingRank, EndsTheRingThatWaitsForIt) {
  const Texts texts = texts_of(3, kPatient, [](RankContext& context, World& world) {
    const auto group = everyone(world);
    if (context.rank() == 0) raise<DeviceError>("no room");
    std::int32_t sent = 0, received = 0;
    group->send_recv(kPairLane, (context.rank() + 1) % 3, {&sent, sizeof sent}, (context.rank() + 2) % 3,
                     {&received, sizeof received}, "kv 0");
  });
  const std::string cause = " in group 'shard' (ranks 0,1,2): rank 0 failed first: [rank 0] no room";
  EXPECT_THAT(texts, ElementsAre(Pair(1, "[rank 1] send_recv 'kv 0' to rank 2 and from rank 0" + cause),
                                 Pair(2, "[rank 2] send_recv 'kv 0' to rank 0 and from rank 1" + cause)));
}

TEST(AStalledRank, IsNamedByTheRankThatWaitsForItsMessage) {
  std::latch given_up(1);
  const Texts texts = texts_of(2, kHasty, [&](RankContext& context, World& world) {
    const auto group = everyone(world);
    gather_one(*group, "layers.2");
    if (context.rank() == 0) {
      given_up.wait();
      return;
    }
    try {
      receiving(0, 8, "f 3")(*group);
    } catch (...) {
      given_up.count_down();
      throw;
    }
  });
  EXPECT_THAT(texts, ElementsAre(Pair(1,
                                      "[rank 1] recv 'f 3' from rank 0 in group 'shard' (ranks 0,1): rank 0 did not "
                                      "come within 200 ms (it last entered all_gather 'layers.2'); raise "
                                      "--distributed-timeout-minutes or look at rank 0")));
}

TEST(AStalledRank, EndsAnAllToAll) {
  std::latch given_up(2);
  const Texts texts = texts_of(3, kHasty, [&](RankContext& context, World& world) {
    if (context.rank() == 0) {
      const auto group = everyone(world);
      return given_up.wait();
    }
    try {
      exchange_bytes({{0, 8, 8}, {8, 0, 8}, {8, 8, 0}}, {{0, 8, 8}, {8, 0, 8}, {8, 8, 0}})(context, world);
    } catch (...) {
      given_up.count_down();
      throw;
    }
  });
  const std::string cause =
      " all_to_all 'tokens' in group 'shard' (ranks 0,1,2): rank 0 did not come within 200 ms (it last entered making "
      "of groups 'shard'); raise --distributed-timeout-minutes or look at rank 0";
  EXPECT_THAT(texts, ElementsAre(Pair(1, "[rank 1]" + cause), Pair(2, "[rank 2]" + cause)));
}

TEST(AnEndedRank, SendsNothing) {
  EXPECT_THAT(differing([](ProcessGroup&) {}, receiving(0, 8, "f 3")),
              ElementsAre(Pair(1, both("[rank 1] recv 'f 3' from rank 0" + std::string(kIn) +
                                       "rank 0 has ended without it (it last entered making of groups 'shard')"))));
}

TEST(AnAllToAll, NeedsAPartForEveryMember) {
  const auto group = InProcessWorld(1, kPatient).view(0)->everyone("shard");
  EXPECT_THAT([&] { group->all_to_all(kPairLane, {}, {}, "tokens"); },
              testing::ThrowsMessage<InvariantError>(
                  "internal: all_to_all 'tokens': 0 parts to send and 0 to receive, the group has 1 members"));
  EXPECT_THAT([&] { group->send(kPairLane, 2, {}, "f 3"); },
              testing::ThrowsMessage<InvariantError>(
                  "internal: send_recv 'f 3': to member 2 and from -1, the group has 1 members"));
}

TEST(DifferingMembers, AreToldThatTheirSplitsDiffer) {
  const Texts texts = texts_of(2, kPatient, [](RankContext& context, World& world) {
    world.split(0, 0, context.rank() == 1 ? "odd" : "even", {});
  });
  const std::string in_world = " in group 'world' (ranks 0,1): ";
  EXPECT_THAT(texts, ElementsAre(Pair(0, both("[rank 0] making of groups 'even'" + in_world +
                                              "rank 0 asks for making of groups 'even', rank 1 for making of groups "
                                              "'odd'")),
                                 Pair(1, both("[rank 1] making of groups 'odd'" + in_world +
                                              "rank 1 asks for making of groups 'odd', rank 0 for making of groups "
                                              "'even'"))));
}

// Ranks 0 and 1 agree; rank 2, which thinks it is with rank 0, is told who really chose its group.
TEST(DifferingMembers, AreToldThatTheirGroupsDiffer) {
  const Texts texts = texts_of(3, kPatient, [](RankContext& context, World& world) {
    const std::vector<int> expected = context.rank() == 2 ? std::vector{0, 2} : std::vector{0, 1};
    world.split(context.rank() == 2 ? 2 : 0, context.rank(), "shard", expected);
  });
  EXPECT_THAT(texts,
              ElementsAre(Pair(2,
                               "[rank 2] making of groups 'shard' in group 'world' (ranks 0,1,2): rank 2 expects "
                               "ranks 0,2 in its group, but finds 2; give all ranks the same axes")));
}

TEST(ASplit, TakesNoColorBelowZero) {
  InProcessWorld shared(1, kPatient);
  const auto world = shared.view(0);
  EXPECT_THAT([&] { world->split(-2, 0, "odd", {}); },
              testing::ThrowsMessage<InvariantError>(
                  "internal: rank 0 gives a split the color -2, expected 0 or more, or kNoColor"));
}

TEST(ALane, IsOneOfSixteen) {
  EXPECT_EQ(Lane(15).id(), 15);
  EXPECT_THAT([] { Lane(16); }, testing::ThrowsMessage<InvariantError>("lane is 16, a group has lanes 0 to 15"));
  EXPECT_THAT([] { Lane(-1); }, testing::ThrowsMessage<InvariantError>("lane is -1, a group has lanes 0 to 15"));
}

TEST(TwoWorlds, FailApart) {
  InProcessWorld broken(1, kPatient);
  InProcessWorld sound(1, kPatient);
  const auto broken_view = broken.view(0);
  const auto sound_view = sound.view(0);
  broken_view->fail("gone");
  EXPECT_THROW(everyone(*broken_view), CommError);
  EXPECT_NO_THROW(everyone(*sound_view)->barrier(kHostLane, "alive"));
  EXPECT_EQ(broken.first_failed(), 0);
  EXPECT_EQ(sound.first_failed(), -1);
}

}  // namespace
}  // namespace loom::comm
