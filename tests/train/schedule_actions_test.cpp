// Promise: a step's work over its micro-batches is a list of actions; accumulation takes one micro-batch after another
//          and reduces each, and a list that leaves out, repeats or misplaces an action is refused.
// World:   lists of up to three micro-batches.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/train/schedule/actions.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

// "F0 L0 B0 R0" as a list.
std::vector<Action> actions_of(const std::string& text) {
  std::vector<Action> actions;
  for (std::size_t at = 0; at < text.size(); at += 3) {
    const std::size_t kind = std::string_view("FLBR").find(text[at]);
    actions.push_back({static_cast<ActionKind>(kind), text[at + 1] - '0'});
  }
  return actions;
}

std::string refused(const std::string& text, std::int64_t micro_batches) {
  return test::message_of<InvariantError>([&] { check_complete(actions_of(text), micro_batches); });
}

TEST(Accumulation, TakesOneMicroBatchAfterAnother) {
  EXPECT_EQ(to_text(accumulation(1)), "F0 L0 B0 R0");
  EXPECT_EQ(to_text(accumulation(3)), "F0 L0 B0 R0 F1 L1 B1 R1 F2 L2 B2 R2");
  EXPECT_EQ(to_text(accumulation(1, false)), "F0 L0 B0 R0");
  EXPECT_EQ(to_text(accumulation(3, false)), "F0 L0 B0 F1 L1 B1 F2 L2 B2 R2");
  for (const std::int64_t count : {1, 2, 64}) {
    EXPECT_NO_THROW(check_complete(accumulation(count), count));
    EXPECT_NO_THROW(check_complete(accumulation(count, false), count));
  }
}

TEST(Actions, MayInterleaveMicroBatchesAndReduceTheLastAlone) {
  EXPECT_NO_THROW(check_complete(actions_of("F0 F1 L0 B0 L1 B1 R1"), 2));
  EXPECT_NO_THROW(check_complete(actions_of("F0 F1 F2 L0 L1 L2 B2 R2 B1 B0 R0"), 3));
}

TEST(Actions, AreRefusedWithTheFirstRuleThatTheyBreak) {
  const auto expect = [](const std::string& list, std::int64_t micro_batches, const std::string& problem) {
    EXPECT_EQ(refused(list, micro_batches), "internal: the schedule " + list + ": " + problem);
  };
  expect("F0 L0 B0 R0", 2, "F1 is missing");
  expect("F0 B0 R0", 1, "B0 is out of order");
  expect("F0 L0 R0", 1, "R0 is out of order");
  expect("F0 L0 B0 R0 F0", 1, "F0 is out of order");
  expect("F0 L0 B0 B0 R0", 1, "B0 is out of order");
  expect("F0 L0 B0 R0 R0", 1, "R0 is out of order");
  expect("F0 F1 L0 L1 B0 B1 R0", 2, "R0 is not directly behind its backward");
  expect("F0 L0 F1 L1 B1 R1", 2, "B0 is missing");
  expect("F0 L0 B0 R0 F1 L1 B1", 2, "the gradients of B1 are not reduced");
  expect("F0 L0 B0 R0 F1", 1, "F1 of 1 micro-batches");
}

TEST(Actions, TellWhichBackwardsReduce) {
  const std::vector<Action> list = actions_of("F0 F1 L0 B0 L1 B1 R1");
  EXPECT_FALSE(is_reduced(list, 3));
  EXPECT_TRUE(is_reduced(list, 5));
}

}  // namespace
}  // namespace loom::train
