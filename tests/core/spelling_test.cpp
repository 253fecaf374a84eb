// Promise: a word is written so that a shell reads it back.
#include "engine/core/spelling.h"

#include <array>
#include <cstdio>
#include <gtest/gtest.h>
#include <memory>

namespace loom {
namespace {

TEST(ShellWord, IsQuotedWhereSomeCharacterNeedsIt) {
  EXPECT_EQ(shell_word("--lr"), "--lr");
  EXPECT_EQ(shell_word("configs/models/llama3_8b.yaml"), "configs/models/llama3_8b.yaml");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("two words"), "'two words'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("a\nb'c"), "$'a\\x0ab\\x27c'");
}

std::string read_back(const std::string& word) {
  const std::string command = "bash -c " + shell_word("printf %s " + shell_word(word));
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::array<char, 256> bytes{};
  return {bytes.data(), std::fread(bytes.data(), 1, bytes.size(), pipe.get())};
}

TEST(ShellWord, IsReadBackByBash) {
  for (const std::string word : {"--lr", "a b", "it's", "$HOME `x` \\", "*?{}[]()<>|&;#~!", "\xc3\xa4"}) {
    EXPECT_EQ(read_back(word), word);
  }
}

}  // namespace
}  // namespace loom
