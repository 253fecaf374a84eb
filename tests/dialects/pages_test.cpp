// Promise: the page of each dialect has every key of its table with its default and what it means here.
// World:   this checkout. With LOOM_WRITE_DOCS in the environment the tables are written.
#include <cstdlib>
#include <fstream>

#include "engine/dialects/row.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

constexpr std::string_view kMark =
    "<!-- The table below is made from engine/dialects; tests/dialects/pages_test.cpp compares them. -->\n";

std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}

// "a, b" as "`a`, `b`".
std::string names(std::string_view text) {
  std::string marked;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(", "));
    text.remove_prefix(std::min(text.size(), one.size() + 2));
    marked += fmt::format("{}`{}`", marked.empty() ? "" : ", ", one);
  }
  return marked;
}

std::string words(const Row& row) {
  std::string text;
  for (std::string_view rest = row.words; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (const std::size_t equal = one.find('='); equal != std::string_view::npos && row.words.size() < 80) {
      text += fmt::format("{}{} is {}", text.empty() ? "; " : ", ", one.substr(0, equal), one.substr(equal + 1));
    }
  }
  return text;
}

std::string meaning(const Row& row) {
  switch (row.act) {
    case Act::kFlag:
      return fmt::format("`{}`{}{}", row.target, row.inverted ? " if false" : "", words(row));
    case Act::kFlat:
      return fmt::format("`{}`{}", row.target, words(row));
    case Act::kDerived:
      return row.target.empty() ? "checked" : names(row.target);
    case Act::kUnused:
      return row.text.empty() ? "without effect" : fmt::format("without effect: {}", row.text);
    case Act::kListed:
      return "listed: of a class or data set that is not built";
    case Act::kRefused:
      return fmt::format("another value is refused: {}", row.text);
  }
  return {};
}

std::string table_text(const Table& table) {
  std::string text = fmt::format("\n| key of {} | default | here |\n| --- | --- | --- |\n", title_of(table.dialect));
  for (const Row& row : table.rows) {
    const bool is_rest = row.key.ends_with('*');
    text += fmt::format("| `{}` | {} | {} |\n", row.key, is_rest ? "" : fmt::format("`{}`", cell(row.fallback)),
                        cell(meaning(row)));
  }
  return text;
}

TEST(Pages, HaveTheTablesOfTheDialects) {
  const std::pair<const char*, std::vector<const Table*>> pages[] = {
      {"from-mindspeed-mm.md", {&native_table()}},
      {"from-mindspeed-llm.md", {&llm_table()}},
      {"from-accelerate.md", {&accelerate_table(), &transformers_table()}},
      {"from-deepspeed.md", {&deepspeed_table()}},
      {"from-torchtitan.md", {&torchtitan_table()}}};
  for (const auto& [name, tables] : pages) {
    const std::filesystem::path path = std::filesystem::path(LOOM_SOURCE_DIR) / "docs" / name;
    const std::string text = test::read_file(path);
    const std::size_t mark = text.find(kMark);
    ASSERT_NE(mark, std::string::npos) << path;
    std::string page = text.substr(0, mark + kMark.size());
    for (const Table* table : tables) page += table_text(*table);
    if (std::getenv("LOOM_WRITE_DOCS") != nullptr) std::ofstream(path) << page;
    EXPECT_EQ(test::read_file(path), page)
        << "write it anew: LOOM_WRITE_DOCS=1 build/release/tests/dialects/dialects_test";
  }
}

}  // namespace
}  // namespace loom::dialects
