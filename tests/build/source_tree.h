// The source tree held against its build: #include lines, link edges and the order of floors.
//
// Paths    relative to the root of the tree, with forward slashes.
// Owner    of a .cpp: the targets that list it; of a .h: those that list the .cpp of the same name. Where there is
//          none: every target of the nearest folder that has one.
// Edges    a target may include what it links, and what those targets link PUBLIC, and so on.
// Answers  one line a problem, "file:line: what, and what to do"; empty when all holds.
#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loom::build_test {

// One line of link_edges.txt. Links are names of the project's own targets (without "loom::"); others are left out.
struct Target {
  std::string name;
  std::string folder;
  std::vector<std::string> sources;
  std::vector<std::string> public_links;
  std::vector<std::string> private_links;
};

std::vector<Target> parse_link_edges(std::string_view text);

// Where each folder stands. A target may link targets of its own folder, of lower floors, and the pairs (from, to) of
// folders on one floor that `level_edges` names. A folder that is not in `floors` belongs to its parent's floor.
struct House {
  std::vector<std::pair<std::string, int>> floors;
  std::vector<std::pair<std::string, std::string>> level_edges;
};
std::vector<std::string> floor_problems(std::span<const Target> targets, const House& house);

// #include "..." lines of the .h and .cpp files below `folders` that do not follow the link edges.
std::vector<std::string> include_problems(const std::filesystem::path& root, std::span<const std::string> folders,
                                          std::span<const Target> targets);

// .cpp files below `folders` that this build does not compile and the nearest CMakeLists.txt does not name (as the
// sources of another configuration), and .h files that no file below them includes.
std::vector<std::string> orphan_problems(const std::filesystem::path& root, std::span<const std::string> folders,
                                         const std::set<std::string>& compiled);

}  // namespace loom::build_test
