// Promise: the checks of the source tree find what is wrong, and name file, line and remedy.
// World:   a tree of two floors in a temporary folder: low (targets low, low_extra) and high, which links low.

#include "tests/build/source_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace loom::build_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::string_view kEdges =
    "low | low | low.cpp | fmt::fmt | \n"
    "low_extra | low | extra.cpp | shardloom::low | \n"
    "high | high | high.cpp |  | shardloom::low_extra\n";
const std::vector<std::string> kFolders = {"low", "high"};
const House kHouse{.floors = {{"low", 1}, {"high", 2}}, .level_edges = {}};

class SourceTree : public ::testing::Test {
 protected:
  void SetUp() override {
    write("low/CMakeLists.txt", "add(low SOURCES low.cpp)\nadd(low_extra SOURCES extra.cpp)\n");
    write("low/low.h", "");
    write("low/low.cpp", "#include \"low/low.h\"\n");
    write("low/extra.h", "#include \"low/low.h\"\n");
    write("low/extra.cpp", "#include \"low/extra.h\"\n");
    write("high/CMakeLists.txt", "add(high SOURCES high.cpp)\n");
    write("high/high.cpp", "#include <vector>\n#include \"low/extra.h\"\n#include \"low/low.h\"\n");
  }

  void write(std::string_view path, std::string_view text) { test::write_file(root_ / path, text); }
  std::vector<std::string> includes(std::string_view edges = kEdges) const {
    return include_problems(root_, kFolders, parse_link_edges(edges));
  }
  std::vector<std::string> orphans(const std::set<std::string>& compiled = {}) const {
    return orphan_problems(root_, kFolders, compiled);
  }

  const std::filesystem::path root_ = test::fresh_folder();
};

TEST_F(SourceTree, HasNoProblemsWhenIncludesFollowEdges) {
  EXPECT_THAT(includes(), IsEmpty());
  EXPECT_THAT(orphans(), IsEmpty());
  EXPECT_THAT(floor_problems(parse_link_edges(kEdges), kHouse), IsEmpty());
}

TEST_F(SourceTree, NamesAnIncludeWithoutAnEdge) {
  write("high/high.h", "");
  write("low/low.cpp", "// text\n#include \"high/high.h\"\n");
  EXPECT_THAT(includes(),
              ElementsAre("low/low.cpp:2: includes \"high/high.h\" of high, which low does not link; add the "
                          "edge in low/CMakeLists.txt or move the code"));
}

TEST_F(SourceTree, TellsTargetsOfOneFolderApart) {
  write("low/low.cpp", "#include \"low/extra.h\"\n");
  EXPECT_THAT(includes(),
              ElementsAre("low/low.cpp:1: includes \"low/extra.h\" of low_extra, which low does not link; add "
                          "the edge in low/CMakeLists.txt or move the code"));
}

TEST_F(SourceTree, DoesNotReachThroughAnothersPrivateEdge) {
  EXPECT_THAT(includes("low | low | low.cpp | | \n"
                       "low_extra | low | extra.cpp |  | shardloom::low\n"
                       "high | high | high.cpp |  | shardloom::low_extra\n"),
              ElementsAre("high/high.cpp:3: includes \"low/low.h\" of low, which high does not link; add the edge in "
                          "high/CMakeLists.txt or move the code"));
}

TEST_F(SourceTree, ChecksASharedHeaderWithEachFileThatIncludesIt) {
  const std::vector<std::string> folders = {"low", "high", "shared"};
  const std::vector<std::string> shared = {"shared"};
  write("shared/outer.h", "#include \"shared/inner.h\"\n");
  write("shared/inner.h", "#include \"low/extra.h\"\n");
  write("high/high.cpp", "#include \"shared/outer.h\"\n");
  EXPECT_THAT(include_problems(root_, folders, parse_link_edges(kEdges), shared), IsEmpty());
  write("low/low.cpp", "#include \"shared/outer.h\"\n#include \"shared/inner.h\"\n");
  EXPECT_THAT(
      include_problems(root_, folders, parse_link_edges(kEdges), shared),
      ElementsAre("low/low.cpp:1: includes \"shared/outer.h\", which includes \"shared/inner.h\", which includes "
                  "\"low/extra.h\" of low_extra, which low does not link; add the edge in low/CMakeLists.txt or "
                  "move the code"));
}

TEST_F(SourceTree, NamesAnIncludeThatIsNotFromTheRoot) {
  write("low/low.cpp", "#include \"low.h\"\n");
  EXPECT_THAT(includes(),
              ElementsAre("low/low.cpp:1: includes \"low.h\", which does not exist; write the path from the "
                          "root of the repository"));
}

TEST_F(SourceTree, NamesAnEdgeUpwards) {
  EXPECT_THAT(
      floor_problems(parse_link_edges("low | low | low.cpp |  | shardloom::high\nhigh | high | high.cpp |  | \n"),
                     kHouse),
      ElementsAre("low/CMakeLists.txt: low (floor 1) links high of high (floor 2); a target links lower floors only"));
}

TEST_F(SourceTree, RefusesAnEdgeOnOneFloorUnlessItIsNamed) {
  const auto targets = parse_link_edges("a | left | a.cpp |  | shardloom::b\nb | right | b.cpp |  | \n");
  House house{.floors = {{"left", 3}, {"right", 3}}, .level_edges = {}};
  EXPECT_THAT(
      floor_problems(targets, house),
      ElementsAre("left/CMakeLists.txt: a (floor 3) links b of right (floor 3); a target links lower floors only"));
  house.level_edges = {{"left", "right"}};
  EXPECT_THAT(floor_problems(targets, house), IsEmpty());
}

TEST_F(SourceTree, RefusesAFolderWithoutAFloor) {
  EXPECT_THAT(
      floor_problems(parse_link_edges("new | cellar | n.cpp |  | shardloom::low\nlow | low | low.cpp | |\n"), kHouse),
      ElementsAre("cellar: has no floor; add it to the table of floors"));
}

TEST_F(SourceTree, NamesASourceThatIsNotListed) {
  write("low/forgotten.cpp", "");
  write("low/CMakeLists.txt", "add(low SOURCES low.cpp extra.cpp)  # forgotten.cpp\n");
  EXPECT_THAT(orphans(),
              ElementsAre("low/forgotten.cpp: low/CMakeLists.txt does not name it; list it there or remove it"));
}

TEST_F(SourceTree, TakesACompiledSourceAsListedWhateverTheList) {
  write("low/subject_test.cpp", "");
  write("low/CMakeLists.txt", "add(low SOURCES low.cpp extra.cpp ${subject}_test.cpp)\n");
  EXPECT_THAT(orphans({"low/subject_test.cpp"}), IsEmpty());
  EXPECT_THAT(orphans(),
              ElementsAre("low/subject_test.cpp: low/CMakeLists.txt does not name it; list it there or remove it"));
}

TEST_F(SourceTree, LooksForAFileOfASubfolderInTheListAboveIt) {
  write("high/part/piece.cpp", "");
  EXPECT_THAT(orphans(),
              ElementsAre("high/part/piece.cpp: high/CMakeLists.txt does not name it; list it there or remove it"));
  write("high/CMakeLists.txt", "add(high SOURCES high.cpp part/piece.cpp)\n");
  EXPECT_THAT(orphans(), IsEmpty());
}

TEST_F(SourceTree, NamesAHeaderThatNothingIncludes) {
  write("high/unused.h", "");
  EXPECT_THAT(orphans(), ElementsAre("high/unused.h: nothing includes it; use it or remove it"));
}

}  // namespace
}  // namespace loom::build_test
