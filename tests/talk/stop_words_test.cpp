// Promise: a text that comes in pieces is shown up to the first stop word, and no part of a stop word is shown early.
// World:   pieces of text.
#include "engine/talk/stop_words.h"

#include <gtest/gtest.h>

namespace loom::talk {
namespace {

TEST(StopWords, HoldBackWhatMayBecomeOne) {
  StopWords words({"END", "\n\n"});
  EXPECT_EQ(words.push("a line\n"), "a line");
  EXPECT_EQ(words.push("EN"), "\n");
  EXPECT_EQ(words.push("TER E"), "ENTER ");
  EXPECT_FALSE(words.found());
  EXPECT_EQ(words.push("N"), "");
  EXPECT_EQ(words.push("D and more"), "");
  EXPECT_TRUE(words.found());
  EXPECT_EQ(words.push("more"), "");
  EXPECT_EQ(words.finish(), "");
}

TEST(StopWords, GiveBackWhatWasHeldWhereNoneCame) {
  StopWords words({"stop"});
  EXPECT_EQ(words.push("do not sto"), "do not ");
  EXPECT_EQ(words.finish(), "sto");
}

TEST(StopWords, CutAtTheFirstOfSeveral) {
  StopWords words({"bc", "ab"});
  EXPECT_EQ(words.push("xabc"), "x");
  EXPECT_TRUE(words.found());
}

TEST(StopWords, LetAllThroughWhereThereAreNone) {
  StopWords words({});
  EXPECT_EQ(words.push("anything"), "anything");
  EXPECT_EQ(words.finish(), "");
}

}  // namespace
}  // namespace loom::talk
