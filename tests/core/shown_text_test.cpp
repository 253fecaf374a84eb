// Promise: no text of a user moves a cursor, colours a terminal or begins a line in a message; long ones are cut with
//          their length said.
#include "engine/core/shown_text.h"

#include <gtest/gtest.h>
#include <limits>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shape.h"

namespace loom {
namespace {

TEST(Escaped, LeavesWhatIsReadableAsItIs) {
  EXPECT_EQ(escaped(""), "");
  EXPECT_EQ(escaped("model.layers.{*} ~!\"'\\n 模型 é 🙂"), "model.layers.{*} ~!\"'\\n 模型 é 🙂");
}

TEST(Escaped, WritesControlCharactersAndBrokenBytesOut) {
  EXPECT_EQ(escaped("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(escaped("\x1b[31mred\x7f"), "\\x1b[31mred\\x7f");
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(escaped("\xc2\x9b"), "\\u009b");  // a control sequence in one character
  EXPECT_EQ(escaped("\xe2\x80\xae"
                    "abc"),
            "\\u202eabc");  // read from right to left
  EXPECT_EQ(escaped("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(escaped("\xc0\x80 \xed\xa0\x80"), "\\xc0\\x80 \\xed\\xa0\\x80");  // overlong, surrogate
}

TEST(Escaped, TwiceIsOnce) {
  const std::string once = escaped("\x1b\n\xff");
  EXPECT_EQ(escaped(once), once);
}

TEST(ShownText, IsCutBetweenCharactersAndSaysItsLength) {
  EXPECT_EQ(shown_text(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(shown_text(std::string(1 << 20, 'a')), std::string(200, 'a') + "... (1048576 bytes)");
  EXPECT_EQ(shown_text(std::string(199, 'a') + "é"), std::string(199, 'a') + "... (201 bytes)");
}

TEST(ShownMessage, KeepsItsOwnLinesAndNoOthers) {
  EXPECT_EQ(shown_message("in use:\n  shard 1 MiB\n  reserved 2 MiB"), "in use:\n  shard 1 MiB\n  reserved 2 MiB");
  EXPECT_EQ(shown_message("--lr is 1\nshardloom: all is well"), "--lr is 1\\nshardloom: all is well");
  const std::string shown = shown_message(std::string(1 << 20, 'a') + "; use less");
  EXPECT_LT(shown.size(), kMessageBytes + 100);
  EXPECT_TRUE(shown.ends_with("a; use less"));
  EXPECT_NE(shown.find(" ... (1032202 bytes left out) ... "), std::string::npos) << shown.size();
}

TEST(InvalidUtf8, IsFoundWhereItBegins) {
  EXPECT_EQ(invalid_utf8("模型"), std::nullopt);
  EXPECT_EQ(invalid_utf8("ab\xff"), 2u);
  EXPECT_EQ(invalid_utf8("\xe6\xa8"), 0u);  // the third byte is missing
}

TEST(CheckedMultiply, HasNoProductThat64BitsDoNotHold) {
  EXPECT_EQ(checked_multiply(1 << 20, 1 << 20), std::int64_t{1} << 40);
  EXPECT_EQ(checked_multiply(std::numeric_limits<std::int64_t>::max(), 1), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(checked_multiply(std::int64_t{1} << 32, std::int64_t{1} << 31), std::nullopt);
}

TEST(ShapeElements, ThatCannotBeCountedAreRefusedWithTheShape) {
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_EQ((Shape{big, 0, big}).numel(), 0);
  EXPECT_EQ((Shape{big, 2}).row_elems(), 2);
  try {
    static_cast<void>(Shape{big, big}.numel());
    FAIL() << "nothing was thrown";
  } catch (const ModelError& error) {
    EXPECT_STREQ(error.what(),
                 "a tensor of shape [1099511627776, 1099511627776] has more elements than 64 bits can count; use "
                 "smaller sizes");
  }
}

}  // namespace
}  // namespace loom
