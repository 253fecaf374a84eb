// Promise: links of the documents lead to files; both READMEs have the same commands and tables and name every page;
//          names in docs/from-python.md stand in the headers beside them, and texts that docs/troubleshooting.md
//          quotes in the sources.
// World:   this checkout.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/build/tree_files.h"

namespace loom::build_test {
namespace {

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
  found.emplace_back("README.md");
  found.emplace_back("README.zh.md");
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

// --- Links

TEST(Documents, LinksLeadToFiles) {
  Texts problems;
  for (const std::string& page : pages()) {
    for (const std::string& target :
         between(fmt::format("{}", fmt::join(part_of(page, Part::kProse), "\n")), "](", ")")) {
      const std::string file = target.substr(0, target.find('#'));
      if (file.empty() || file.find("://") != std::string::npos) continue;
      if (!std::filesystem::exists((kRoot / page).parent_path() / file)) {
        problems.push_back(fmt::format("{}: the link to {} leads nowhere", page, target));
      }
    }
  }
  EXPECT_THAT(problems, IsEmpty());
}

TEST(Documents, AreAllNamedInBothReadmes) {
  Texts problems;
  for (const std::string& page : pages()) {
    if (!page.starts_with("docs/")) continue;
    for (const char* readme : {"README.md", "README.zh.md"}) {
      if (read_text(kRoot / readme).find("](" + page + ")") != std::string::npos) continue;
      problems.push_back(fmt::format("{} does not link {}", readme, page));
    }
  }
  EXPECT_THAT(problems, IsEmpty());
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

TEST(Documents, BothReadmesHaveTheSameTables) {
  const auto first_cells = [](const std::string& page) {
    Texts firsts;
    for (const std::string& line : lines_of(page)) {
      const Texts cells = cells_of(line);
      if (!cells.empty() && cells[0].starts_with('`')) firsts.push_back(cells[0]);
    }
    return firsts;
  };
  ASSERT_THAT(first_cells("README.md"), Not(IsEmpty()));
  EXPECT_EQ(first_cells("README.zh.md"), first_cells("README.md"));
}

// --- docs/from-python.md

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

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
