// Promise: a rank owns one value of each type; a scope makes it current on one thread, and scopes nest.
#include "engine/core/rank_context.h"

#include <atomic>
#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <vector>

#include "engine/core/error.h"

namespace loom {
namespace {

struct Counter {
  int value = 5;
};
struct OtherCounter {
  int value = 7;
};

TEST(RankContext, OwnsOneValueOfEachType) {
  RankContext context(2, 4);
  EXPECT_EQ(context.rank(), 2);
  EXPECT_EQ(context.world_size(), 4);
  Counter& counter = context.slot<Counter>();
  EXPECT_EQ(counter.value, 5) << "default-constructed at first use";
  counter.value = 6;
  EXPECT_EQ(context.slot<OtherCounter>().value, 7);
  EXPECT_EQ(&context.slot<Counter>(), &counter);
  EXPECT_EQ(context.slot<Counter>().value, 6);
}

TEST(RankContext, RanksShareNothing) {
  RankContext a(0, 2), b(1, 2);
  a.slot<Counter>().value = 1;
  EXPECT_EQ(b.slot<Counter>().value, 5);
}

TEST(RankContext, WhatIsToStopAtItsEndStopsLastFirstWhileSlotsAreThere) {
  std::vector<int> order;
  {
    RankContext context(0, 1);
    context.slot<Counter>().value = 9;
    context.at_end([&] { order.push_back(context.slot<Counter>().value); });
    context.at_end([&] { order.push_back(context.slot<OtherCounter>().value); });  // made now
  }
  EXPECT_EQ(order, (std::vector<int>{7, 9}));
}

TEST(RankContext, SlotsDieWithTheirContext) {
  struct Watched {
    std::shared_ptr<int> token = std::make_shared<int>(0);
  };
  std::weak_ptr<int> watch;
  {
    RankContext context(0, 1);
    watch = context.slot<Watched>().token;
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

struct First {
  ~First() { order->push_back(1); }
  std::vector<int>* order = nullptr;
};
struct Second {
  ~Second() { order->push_back(2); }
  std::vector<int>* order = nullptr;
};

TEST(RankContext, TheSlotMadeLastEndsFirst) {
  std::vector<int> order;
  {
    RankContext context(0, 1);
    context.slot<First>().order = &order;
    context.slot<Second>().order = &order;
  }
  EXPECT_EQ(order, (std::vector<int>{2, 1}));
}

struct MadeOnce {
  MadeOnce() { made.fetch_add(1); }
  static inline std::atomic<int> made{0};
};

TEST(RankContext, ManyThreadsFindOneSlot) {
  RankContext context(0, 1);
  std::vector<MadeOnce*> found(4);
  {
    std::vector<std::jthread> threads;
    for (MadeOnce*& mine : found) threads.emplace_back([&] { mine = &context.slot<MadeOnce>(); });
  }
  EXPECT_EQ(MadeOnce::made.load(), 1);
  for (const MadeOnce* mine : found) EXPECT_EQ(mine, found[0]);
}

struct Outer {
  int inner = RankContext::current().slot<Counter>().value;
};

TEST(RankContext, ASlotMayLookUpAnotherWhileItIsMade) {
  RankContext context(0, 1);
  const RankScope scope(context);
  EXPECT_EQ(context.slot<Outer>().inner, 5);
}

TEST(RankScope, Nests) {
  EXPECT_EQ(RankContext::current_or_null(), nullptr);
  RankContext outer(0, 2), inner(1, 2);
  const RankScope outer_scope(outer);
  {
    const RankScope inner_scope(inner);
    EXPECT_EQ(&RankContext::current(), &inner);
  }
  EXPECT_EQ(&RankContext::current(), &outer);
}

TEST(RankScope, HoldsForItsThreadOnly) {
  RankContext context(0, 2), other(1, 2);
  const RankScope scope(context);
  std::thread([&] {
    EXPECT_EQ(RankContext::current_or_null(), nullptr);
    const RankScope here(other);
    EXPECT_EQ(RankContext::current().rank(), 1);
  }).join();
  EXPECT_EQ(RankContext::current().rank(), 0);
}

TEST(RankScope, WithoutOneThereIsNoCurrentRank) {
  try {
    RankContext::current();
    FAIL() << "nothing was thrown";
  } catch (const InvariantError& error) {
    EXPECT_STREQ(error.what(), "internal: no rank is current on this thread; open a RankScope first");
  }
}

}  // namespace
}  // namespace loom
