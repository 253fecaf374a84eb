// Promise: a header is private by its folder or its first comment, and an include across the line is found, with the
//          room and the remedy.
// World:   a tree in a temporary folder: the rooms engine/low and high, and their tests.

#include "tests/build/private_headers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace loom::build_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using namespace std::string_literals;

const std::vector<std::string> kFolders = {"engine", "high", "tests"};
const std::vector<std::string> kInstalled = {"engine", "high"};

class PrivateHeaders : public ::testing::Test {
 protected:
  void SetUp() override {
    write("engine/low/open.h", "// Open.\n#pragma once\n// Private to engine/low.\n");
    write("engine/low/parts.h",
          "// What the room shares, among\n// its own. Private to\n// engine/low.\n#pragma once\n");
    write("engine/low/internal/deep.h", "#pragma once\n");
  }
  void write(std::string_view path, std::string_view text) { test::write_file(root_ / path, text); }
  std::vector<std::string> problems() const { return private_problems(root_, kFolders, kInstalled); }

  const std::filesystem::path root_ = test::fresh_folder();
};

TEST_F(PrivateHeaders, AreThoseOfInternalFoldersAndThoseThatSaySo) {
  EXPECT_EQ(private_room(root_, "engine/low/open.h"), std::nullopt);
  EXPECT_THAT(private_room(root_, "engine/low/parts.h"), Optional("engine/low"s));
  EXPECT_THAT(private_room(root_, "engine/low/internal/deep.h"), Optional("engine/low"s));
}

TEST_F(PrivateHeaders, AreIncludedByTheirRoomAndItsTests) {
  write("engine/low/low.cpp", "#include \"engine/low/internal/deep.h\"\n#include \"engine/low/parts.h\"\n");
  write("tests/low/low_test.cpp", "#include \"engine/low/parts.h\"\n");
  write("high/high.cpp", "#include \"engine/low/open.h\"\n");
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(PrivateHeaders, AreRefusedElsewhere) {
  write("high/high.cpp", "\n#include \"engine/low/parts.h\"\n");
  write("tests/high/high_test.cpp", "#include \"engine/low/internal/deep.h\"\n");
  EXPECT_THAT(problems(),
              ElementsAre("high/high.cpp:2: includes \"engine/low/parts.h\", which is private to engine/low; use what "
                          "engine/low offers, or make the header public",
                          "tests/high/high_test.cpp:1: includes \"engine/low/internal/deep.h\", which is private to "
                          "engine/low; use what engine/low offers, or make the header public"));
}

TEST_F(PrivateHeaders, AreNotIncludedByAHeaderThatIsInstalled) {
  write("engine/low/open.h", "#include \"engine/low/parts.h\"\n");
  write("engine/low/more.h", "// More. Private to engine/low.\n#include \"engine/low/parts.h\"\n");
  EXPECT_THAT(problems(),
              ElementsAre("engine/low/open.h:1: includes \"engine/low/parts.h\", which is private to engine/low and "
                          "not installed, while this header is; include it in the source, or make both private"));
}

TEST_F(PrivateHeaders, StandInTheRoomTheyName) {
  write("high/strange.h", "// Strange. Private to engine/low.\n");
  EXPECT_THAT(problems(),
              ElementsAre("high/strange.h: is private to engine/low and does not stand in it; name its own room"));
}

}  // namespace
}  // namespace loom::build_test
