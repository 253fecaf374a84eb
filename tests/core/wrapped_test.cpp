// Promise: a long line goes on in lines of at most 100 columns, broken between words; a key stays with its value, a
//          number with its unit.
#include "engine/core/wrapped.h"

#include <gtest/gtest.h>

namespace loom {
namespace {

std::string words(std::size_t count, const std::string& word) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + word;
  return text;
}

TEST(Wrapped, KeepsWhatIsShort) {
  const std::string table = "  a    b\n\n" + std::string(kTextColumns, 'x') + "\n";
  EXPECT_EQ(wrapped(table, 4), table);
  EXPECT_EQ(wrapped("no end", 4), "no end");
}

TEST(Wrapped, BreaksBetweenWordsAndIndents) {
  EXPECT_EQ(wrapped(words(30, "four") + "\n", 2), words(20, "four") + "\n  " + words(10, "four") + "\n");
  EXPECT_EQ(wrapped("  " + words(40, "four"), 4),
            "  " + words(19, "four") + "\n    " + words(19, "four") + "\n    " + words(2, "four"));
}

TEST(Wrapped, PrefersACommaNearTheEnd) {
  EXPECT_EQ(wrapped(words(16, "four") + ", " + words(8, "four"), 0), words(16, "four") + ",\n" + words(8, "four"));
}

TEST(Wrapped, KeepsAKeyWithItsValue) {
  const std::string before = words(18, "four");
  EXPECT_EQ(wrapped(before + " keys: " + words(2, "value"), 0), before + "\n" + "keys: " + words(2, "value"));
}

TEST(Wrapped, KeepsANumberWithItsUnitAndShortParenthesesWhole) {
  const std::string before = words(18, "four");
  EXPECT_EQ(wrapped(before + " is 12.50 GiB", 0), before + " is\n12.50 GiB");
  EXPECT_EQ(wrapped(before + " (12.50 GiB, 3 s)", 0), before + "\n(12.50 GiB, 3 s)");
}

TEST(Wrapped, KeepsALongWordAndTheColumnsInFront) {
  const std::string word(2 * kTextColumns, 'w');
  EXPECT_EQ(wrapped("a b  " + word + " c", 5), "a b  " + word + "\n     c");
  EXPECT_EQ(wrapped(word, 5), word);
}

}  // namespace
}  // namespace loom
