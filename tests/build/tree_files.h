// Files of the source tree, as its checks read them.
//
// Paths    relative to the root of the tree, with forward slashes.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loom::build_test {

std::string read_text(const std::filesystem::path& path);

// Files below `folders` with one of `extensions`, sorted.
std::vector<std::string> files_below(const std::filesystem::path& root, std::span<const std::string> folders,
                                     std::initializer_list<std::string_view> extensions);

struct IncludeLine {
  int line = 0;
  std::string path;
};
// The #include "..." lines of a file.
std::vector<IncludeLine> quoted_includes(const std::filesystem::path& path);

// The folder of a path; "" above the root.
std::string parent(const std::string& path);

}  // namespace loom::build_test
