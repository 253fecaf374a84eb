#include "tests/build/tree_files.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>

namespace loom::build_test {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> files_below(const fs::path& root, std::span<const std::string> folders,
                                     std::initializer_list<std::string_view> extensions) {
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const bool wanted = std::ranges::find(extensions, entry.path().extension().string()) != extensions.end();
      if (entry.is_regular_file() && wanted) files.push_back(entry.path().lexically_relative(root).generic_string());
    }
  }
  std::ranges::sort(files);
  return files;
}

std::vector<IncludeLine> quoted_includes(const fs::path& path) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*"([^"]+)\")");
  std::vector<IncludeLine> includes;
  std::ifstream file(path);
  int line = 0;
  for (std::string text; std::getline(file, text);) {
    ++line;
    if (std::smatch match; std::regex_search(text, match, kInclude)) includes.push_back({line, match[1]});
  }
  return includes;
}

std::string parent(const std::string& path) { return fs::path(path).parent_path().generic_string(); }

}  // namespace loom::build_test
