// Promise: a rank owns one value of each type; a scope makes it current on one thread, and scopes nest.
#include "engine/core/rank_context.h"

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
