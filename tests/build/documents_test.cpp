// Promise: links of the documents lead to files and headings; docs/index.md names every page; both READMEs have the
//          same commands and links and show a model that is compiled; docs/dependencies.md has the packages that are
//          installed, and the Dockerfile uses scripts, presets and folders that exist. Headers have the names that
//          docs/from-python.md gives beside them, and sources the texts that docs/troubleshooting.md quotes.
// World:   this checkout.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/build/tree_files.h"

namespace loom::build_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using Texts = std::vector<std::string>;

const std::filesystem::path kRoot = LOOM_SOURCE_DIR;

Texts lines_of(const std::string& page) {
  Texts lines;
  std::istringstream text(read_text(kRoot / page));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

Texts pages() {
  const Texts docs{"docs"};
  Texts found = files_below(kRoot, docs, {".md"});
  for (const char* page : {"README.md", "README.zh.md", "SECURITY.md"}) found.emplace_back(page);
  return found;
}

// What stands between `open` and the `close` behind it, each time.
Texts between(const std::string& text, const std::string& open, const std::string& close) {
  Texts found;
  for (std::size_t at = text.find(open); at != std::string::npos; at = text.find(open, at)) {
    at += open.size();
    const std::size_t end = text.find(close, at);
    if (end == std::string::npos) break;
    found.push_back(text.substr(at, end - at));
    at = end + close.size();
  }
  return found;
}

Texts code_in(const std::string& text) { return between(text, "`", "`"); }

// The cells of a table's row; none for another line, and for the line below the head.
Texts cells_of(const std::string& line) {
  Texts cells;
  if (!line.starts_with("| ") || line.starts_with("| ---")) return cells;
  for (std::size_t at = 2; at < line.size();) {
    const std::size_t end = std::min(line.find(" |", at), line.size());
    cells.push_back(line.substr(at, end - at));
    at = end + 3;
  }
  return cells;
}

enum class Part { kProse, kCode };

// The lines of a page outside ``` fences, or those inside.
Texts part_of(const std::string& page, Part part) {
  Texts lines;
  bool inside = false;
  for (std::string& line : lines_of(page)) {
    if (line.starts_with("```")) {
      inside = !inside;
    } else if (inside == (part == Part::kCode)) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// --- Links

// The targets of a page's links, in their order.
Texts links_of(const std::string& page) {
  return between(fmt::format("{}", fmt::join(part_of(page, Part::kProse), "\n")), "](", ")");
}

// "data.pkl, twice" is "datapkl-twice" in a link: GitHub's rule for ASCII.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading.substr(heading.find_first_not_of("# "))) {
    if (is_word(c) || c == '-') anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

bool has_heading(const std::string& page, const std::string& anchor) {
  return std::ranges::any_of(part_of(page, Part::kProse), [&](const std::string& line) {
    return line.starts_with('#') && anchor_of(line) == anchor;
  });
}

TEST(Documents, LinksLeadToFilesAndHeadings) {
  Texts problems;
  for (const std::string& page : pages()) {
    for (const std::string& target : links_of(page)) {
      if (target.find("://") != std::string::npos) continue;
      const std::size_t hash = std::min(target.find('#'), target.size());
      const auto file =
          hash == 0 ? std::filesystem::path(page) : std::filesystem::path(page).parent_path() / target.substr(0, hash);
      if (!std::filesystem::exists(kRoot / file) ||
          (hash < target.size() && !has_heading(file, target.substr(hash + 1)))) {
        problems.push_back(fmt::format("{}: the link to {} leads nowhere", page, target));
      }
    }
  }
  EXPECT_THAT(problems, IsEmpty());
}

TEST(Documents, AreAllNamedInTheIndex) {
  const Texts links = links_of("docs/index.md");
  Texts problems;
  for (const std::string& page : pages()) {
    if (!page.starts_with("docs/") || page == "docs/index.md") continue;
    const auto linked = std::ranges::count(links, page.substr(std::string("docs/").size()));
    if (linked != 1) problems.push_back(fmt::format("docs/index.md links {} {} times, not once", page, linked));
  }
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_THAT(links_of("README.md"), Contains("docs/index.md"));
}

// --- The README in two languages

// The code of a page, without comments and the blanks before them.
Texts commands_of(const std::string& page) {
  Texts commands = part_of(page, Part::kCode);
  for (std::string& line : commands) {
    line = line.substr(0, line.find(" #"));
    line.erase(line.find_last_not_of(' ') + 1);
  }
  return commands;
}

TEST(Documents, BothReadmesHaveTheSameCommands) {
  ASSERT_THAT(commands_of("README.md"), Not(IsEmpty()));
  EXPECT_EQ(commands_of("README.zh.md"), commands_of("README.md"));
}

TEST(Documents, BothReadmesHaveTheSameLinks) {
  Texts links = links_of("README.md");
  Texts others = links_of("README.zh.md");
  ASSERT_GT(links.size(), 5u);
  ASSERT_EQ(others.size(), links.size());
  EXPECT_EQ(links[0], "README.zh.md");
  EXPECT_EQ(others[0], "README.md");
  links[0] = others[0];
  EXPECT_EQ(others, links);
}

// The C++ of a page.
Texts model_of(const std::string& page) {
  Texts lines;
  bool inside = false;
  for (std::string& line : lines_of(page)) {
    if (line.starts_with("```")) {
      inside = line == "```cpp";
    } else if (inside) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

TEST(Documents, TheModelOfTheReadmeIsCompiled) {
  const Texts model = model_of("README.md");
  EXPECT_EQ(model, lines_of("tests/build/consumer/readme_model.cpp"));
  EXPECT_LT(model.size(), 25u);
}

// --- docs/dependencies.md

// "cmake", "ninja-build", ... of `name=(cmake ninja-build ...)`.
std::set<std::string> installed(const std::string& name) {
  const Texts lists = between(read_text(kRoot / "cmake/install_packages.sh"), "\n" + name + "=(", ")");
  std::istringstream words(lists.empty() ? "" : lists[0]);
  return {std::istream_iterator<std::string>(words), {}};
}

// The packages in the first cells of the table below a heading.
std::set<std::string> listed(const std::string& heading) {
  std::set<std::string> packages;
  bool inside = false;
  for (const std::string& line : lines_of("docs/dependencies.md")) {
    if (line.starts_with("## ")) inside = line == heading;
    const Texts cells = cells_of(line);
    if (!inside || cells.empty()) continue;
    for (const std::string& code : code_in(cells[0])) {
      std::istringstream words(code);
      packages.insert(std::istream_iterator<std::string>(words), {});
    }
  }
  return packages;
}

TEST(Dependencies, AreThePackagesThatAreInstalled) {
  EXPECT_THAT(installed("run"), Not(IsEmpty()));
  EXPECT_EQ(listed("## The program"), installed("run"));
  EXPECT_THAT(installed("test"), Not(IsEmpty()));
  EXPECT_EQ(listed("## Tests and benchmarks"), installed("test"));
}

// --- Dockerfile

// The words behind `before` in the Dockerfile, each up to a blank.
Texts words_behind(const std::string& before) {
  Texts found;
  for (const std::string& line : lines_of("Dockerfile")) {
    if (line.starts_with("#")) continue;
    for (std::size_t at = line.find(before); at != std::string::npos; at = line.find(before, at + 1)) {
      const std::size_t begin = at + before.size();
      found.push_back(line.substr(begin, line.find_first_of(" \n", begin) - begin));
    }
  }
  return found;
}

Texts names_of(const nlohmann::json& presets) {
  Texts names;
  for (const auto& preset : presets) names.push_back(preset.at("name"));
  return names;
}

// Without the tests and benchmarks, which the preset leaves out.
TEST(Dockerfile, CopiesTheFoldersThatTheBuildOfTheProgramNeeds) {
  const Texts copied = lines_of(".dockerignore");
  EXPECT_THAT(copied, Contains("*"));
  Texts folders = between(read_text(kRoot / "CMakeLists.txt"), "\nadd_subdirectory(", ")");
  for (const char* other :
       {"cmake", "configs", "CMakeLists.txt", "CMakePresets.json", "LICENSE", "CHANGELOG.md", "README.md"})
    folders.emplace_back(other);
  for (const std::string& folder : folders) EXPECT_THAT(copied, Contains("!" + folder));
}

TEST(Dockerfile, InstallsBuildsAndPacksWithWhatTheCheckoutHas) {
  EXPECT_THAT(words_behind("FROM "), ElementsAre("debian:12-slim", "debian:12-slim"));
  EXPECT_THAT(words_behind("RUN bash /source/"), ElementsAre("cmake/install_packages.sh"));
  EXPECT_THAT(words_behind("install_packages.sh "), Contains("run"));
  const auto presets = nlohmann::json::parse(read_text(kRoot / "CMakePresets.json"));
  const Texts configured = words_behind("cmake --preset "), built = words_behind("cmake --build --preset ");
  EXPECT_THAT(configured, ElementsAre("package"));
  EXPECT_EQ(built, configured);
  EXPECT_THAT(names_of(presets.at("configurePresets")), Contains("package"));
  EXPECT_THAT(names_of(presets.at("buildPresets")), Contains("package"));
  EXPECT_THAT(words_behind("cpack -G DEB --config "), ElementsAre("build/package/CPackConfig.cmake"));
}

// The image has no recommended packages: the one that the package recommends is named.
TEST(Dockerfile, InstallsThePackageWithMpirun) {
  EXPECT_THAT(words_behind("/package/shardloom_"), ElementsAre("*.deb"));
  const Texts recommended = between(read_text(kRoot / "cmake/LoomPackage.cmake"), "PACKAGE_RECOMMENDS ", ")");
  EXPECT_THAT(recommended, ElementsAre("openmpi-bin"));
  EXPECT_THAT(words_behind("/package/shardloom_*.deb "), ElementsAre("openmpi-bin"));
}

// --- docs/from-python.md

bool has_word(const std::string& text, const std::string& word) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

// "fully_shard" of "sharding::fully_shard()".
std::string bare_name(std::string name) {
  name = name.substr(0, name.find('('));
  const std::size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

TEST(FromPython, NamesStandInTheirHeaders) {
  Texts problems;
  std::size_t names = 0;
  for (const std::string& line : lines_of("docs/from-python.md")) {
    const Texts cells = cells_of(line);
    if (cells.empty() || cells[0] == "Python") continue;
    ASSERT_EQ(cells.size(), 4u) << line;
    std::string text;
    for (const std::string& header : code_in(cells[2])) {
      if (std::filesystem::exists(kRoot / header)) {
        text += read_text(kRoot / header);
      } else {
        problems.push_back(fmt::format("there is no {}", header));
      }
    }
    for (const std::string& name : code_in(cells[1])) {
      ++names;
      if (!has_word(text, bare_name(name))) problems.push_back(fmt::format("{} does not have {}", cells[2], name));
    }
  }
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_GT(names, 80u);
}

// --- docs/troubleshooting.md

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = std::min(text.find(from, at), text.size());
    result.append(text, at, found - at);
    if (found < text.size()) result += to;
    at = found + from.size();
  }
  return result;
}

// All sources, with the literals of a message joined and its braces and quotes as they are printed.
std::string printed_texts() {
  const Texts folders{"engine", "sharding", "recompute", "offload", "models"};
  std::string text;
  for (const std::string& file : files_below(kRoot, folders, {".h", ".cpp"})) text += read_text(kRoot / file);
  std::string joined;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = text[at] == '"' ? text.find_first_not_of(" \n", at + 1) : std::string::npos;
    const bool splits = next != std::string::npos && next > at + 1 && text[next] == '"' &&
                        text.substr(at, next - at).find('\n') != std::string::npos;
    if (!splits) joined += text[at];
    at = splits ? next + 1 : at + 1;
  }
  return replaced(replaced(replaced(joined, "{{", "{"), "}}", "}"), "\\\"", "\"");
}

// The parts of a quoted message between its values.
Texts parts_of(std::string message) {
  Texts parts;
  message += "...";
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t end = message.find("...", at);
    std::string part = message.substr(at, end - at);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    if (part.size() > 2) parts.push_back(part);
    at = end + 3;
  }
  return parts;
}

TEST(Troubleshooting, QuotesTextsOfTheSources) {
  const std::string texts = printed_texts();
  Texts problems;
  std::size_t quoted = 0;
  for (const std::string& line : lines_of("docs/troubleshooting.md")) {
    const Texts cells = cells_of(line);
    if (cells.empty() || !cells[0].starts_with('`')) continue;
    for (const std::string& message : code_in(cells[0])) {
      ++quoted;
      for (const std::string& part : parts_of(message)) {
        if (texts.find(part) == std::string::npos) problems.push_back(fmt::format("\"{}\" of: {}", part, message));
      }
    }
  }
  EXPECT_THAT(problems, IsEmpty()) << "quoted in docs/troubleshooting.md, but in no message of the sources";
  EXPECT_GT(quoted, 50u);
}

}  // namespace
}  // namespace loom::build_test
