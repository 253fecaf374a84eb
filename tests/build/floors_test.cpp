// Promise: #include lines follow the link edges, edges never lead upwards, no source file is forgotten, private headers
//          stay in their rooms, and tables in comments are whole.
// World:   this checkout and the link_edges.txt of this build.

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/build/comment_tables.h"
#include "tests/build/private_headers.h"
#include "tests/build/source_tree.h"
#include "tests/build/tree_files.h"

namespace loom::build_test {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

const std::filesystem::path kRoot = LOOM_SOURCE_DIR;
const std::vector<std::string> kInstalled = {"engine", "sharding", "recompute", "offload", "models"};
const std::vector<std::string> kLinked = {"engine", "sharding", "recompute", "offload", "models", "examples", "tests"};
const std::vector<std::string> kAll = {"engine", "sharding", "recompute", "offload",
                                       "models", "examples", "tests",     "bench"};
// Headers that tests of several rooms share, without a target, and the project that is built elsewhere.
const std::vector<std::string> kShared = {"tests/support", "tests/tensor/tensors.h", "tests/build/consumer"};

// The rooms of docs/architecture.md by floor, and who may use whom on the same floor.
const House kHouse{
    .floors = {{"engine/core", 1},
               {"engine/config", 2},
               {"engine/io", 2},
               {"engine/regex", 2},
               {"engine/device", 2},
               {"engine/formats", 3},
               {"engine/images", 3},
               {"engine/virtual_time", 3},
               {"engine/kernels", 3},
               {"engine/calibrate", 4},
               {"engine/tensor", 4},
               {"engine/comm", 4},
               {"engine/dist", 5},
               {"engine/nn", 5},
               {"engine/custom_op", 5},
               {"engine/launch", 5},
               {"engine/data", 5},
               {"engine/launcher", 6},
               {"engine/text", 6},
               {"sharding", 6},
               {"recompute", 6},
               {"offload", 6},
               {"models", 7},
               {"engine/multimodal", 7},
               {"engine/checkpoint", 7},
               {"engine/convert", 8},
               {"engine/log", 8},
               {"engine/objective", 8},
               {"engine/train", 8},
               {"engine/observe", 9},
               {"engine/plan", 9},
               {"engine/talk", 9},
               {"engine/explain", 10},
               {"engine/job", 10},
               {"engine/dialects", 10},
               {"engine/cli", 11},
               {"examples", 12},
               {"bench", 13},
               {"tests", 13}},
    .level_edges = {{"engine/dialects", "engine/job"},    // rows name keys of the job
                    {"engine/data", "engine/nn"},         // batches hold tensors, the forward step takes a Module
                    {"engine/data", "engine/dist"},       // which tokens of a sequence a rank has
                    {"engine/log", "engine/train/step"},  // observers of steps
                    {"engine/train", "engine/train/step"},
                    {"engine/train", "engine/train/schedule"},
                    {"engine/train", "engine/objective"},      // the forward and the auxiliary model of a step
                    {"engine/train", "engine/log"},            // a checkpoint keeps the state of the spikes' watch
                    {"engine/plan", "engine/observe"},         // a plan prints the schedule's view and writes traces
                    {"tests/virtual_time", "tests/memory"}}};  // the dry runs of the reference rows

std::vector<Target> targets_of_this_build() {
  std::ifstream file(LOOM_EDGES_FILE);
  return parse_link_edges(std::string{std::istreambuf_iterator<char>(file), {}});
}

// Sources of compile_commands.json, from the root of the tree.
std::set<std::string> sources_of_this_build() {
  std::ifstream file(LOOM_COMPILE_COMMANDS);
  std::set<std::string> sources;
  const auto add = [&](const std::string& path) {
    sources.insert(std::filesystem::path(path).lexically_relative(kRoot).generic_string());
  };
  for (const auto& command : nlohmann::json::parse(file)) {
    const std::string path = command.at("file");
    add(path);
    if (path.find("/groups/") == std::string::npos) continue;
    std::istringstream group(read_text(path));  // #include "source" lines (cmake/LoomUnity.cmake)
    for (std::string line; std::getline(group, line);) {
      if (line.starts_with("#include \"")) sources.insert(line.substr(10, line.size() - 11));
    }
  }
  return sources;
}

TEST(Floors, IncludeLinesFollowTheLinkEdges) {
  const auto targets = targets_of_this_build();
  ASSERT_THAT(targets, Not(IsEmpty()));
  EXPECT_THAT(include_problems(kRoot, kLinked, targets, kShared), IsEmpty());
}

TEST(Floors, EdgesLeadToLowerFloors) { EXPECT_THAT(floor_problems(targets_of_this_build(), kHouse), IsEmpty()); }

TEST(Floors, EverySourceFileIsListedAndEveryHeaderUsed) {
  EXPECT_THAT(orphan_problems(kRoot, kAll, sources_of_this_build()), IsEmpty());
}

TEST(Floors, PrivateHeadersStayInTheirRooms) { EXPECT_THAT(private_problems(kRoot, kAll, kInstalled), IsEmpty()); }

TEST(Floors, CommentsKeepTheirTables) {
  std::vector<std::string> problems;
  for (const std::string& file : files_below(kRoot, kAll, {".h", ".cpp"})) {
    for (std::string& problem : comment_problems(file, read_text(kRoot / file))) problems.push_back(std::move(problem));
  }
  EXPECT_THAT(problems, IsEmpty());
}

}  // namespace
}  // namespace loom::build_test
