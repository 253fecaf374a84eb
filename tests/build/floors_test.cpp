// Promise: #include lines follow the link edges, edges never lead upwards, and no source file is forgotten.
// World:   this checkout and the link_edges.txt of this build.

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/build/source_tree.h"

namespace loom::build_test {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

const std::filesystem::path kRoot = LOOM_SOURCE_DIR;
const std::vector<std::string> kFloors = {"engine", "sharding", "recompute", "offload", "models", "examples"};

// The house of DESIGN: folders by floor, and who may use whom on the same floor.
const House kHouse{.floors = {{"engine/core", 1},
                              {"engine/device", 2},
                              {"engine/tensor", 3},
                              {"engine/kernels", 3},
                              {"engine/io", 3},
                              {"engine/comm", 3},
                              {"engine/nn", 4},
                              {"sharding", 5},
                              {"recompute", 5},
                              {"offload", 5},
                              {"models", 6},
                              {"engine/train", 7},
                              {"examples", 8}},
                   .level_edges = {{"engine/tensor", "engine/kernels"},
                                   {"engine/comm", "engine/kernels"},  // the ordered sum
                                   {"offload", "sharding"}}};          // calls the group's verbs

std::vector<Target> targets_of_this_build() {
  std::ifstream file(LOOM_EDGES_FILE);
  return parse_link_edges(std::string{std::istreambuf_iterator<char>(file), {}});
}

// Sources of compile_commands.json, from the root of the tree.
std::set<std::string> sources_of_this_build() {
  std::ifstream file(LOOM_COMPILE_COMMANDS);
  std::set<std::string> sources;
  for (const auto& command : nlohmann::json::parse(file)) {
    sources.insert(
        std::filesystem::path(command.at("file").get<std::string>()).lexically_relative(kRoot).generic_string());
  }
  return sources;
}

TEST(Floors, IncludeLinesFollowTheLinkEdges) {
  const auto targets = targets_of_this_build();
  ASSERT_THAT(targets, Not(IsEmpty()));
  EXPECT_THAT(include_problems(kRoot, kFloors, targets), IsEmpty());
}

TEST(Floors, EdgesLeadToLowerFloors) { EXPECT_THAT(floor_problems(targets_of_this_build(), kHouse), IsEmpty()); }

TEST(Floors, EverySourceFileIsListedAndEveryHeaderUsed) {
  std::vector<std::string> folders = kFloors;
  folders.insert(folders.end(), {"tests", "bench"});
  EXPECT_THAT(orphan_problems(kRoot, folders, sources_of_this_build()), IsEmpty());
}

}  // namespace
}  // namespace loom::build_test
