#include "tests/build/comment_tables.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <regex>
#include <sstream>
#include <utility>

namespace loom::build_test {
namespace {

constexpr std::size_t kMostColumns = 120;

// Where the rows of a table stand: their labels' indent and their texts' column, both counted behind "//".
struct Table {
  std::size_t indent = 0;
  std::size_t column = 0;
  int line = 0;  // of the first row
};

std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::optional<Table> table_of_row(const std::string& comment, int line) {
  static const std::regex kPromise("^( )(Promise|World): +(?=\\S)");
  static const std::regex kRow("^( {1,5})[A-Za-z][\\w'-]*:?(,? [\\w'-]+){0,3}  +(?=\\S)");
  std::smatch match;
  if (!std::regex_search(comment, match, kPromise) && !std::regex_search(comment, match, kRow)) return std::nullopt;
  return Table{static_cast<std::size_t>(match[1].length()), static_cast<std::size_t>(match[0].length()), line};
}

bool belongs_to(const Table& table, const std::string& comment) {
  const std::size_t indent = comment.find_first_not_of(' ');
  if (indent >= table.column) return true;
  return indent == table.indent && comment.size() > table.column && comment[table.column] != ' ' &&
         comment[table.column - 1] == ' ' && (comment[table.column - 2] == ' ' || comment[table.column - 2] == ':');
}

// The label of a row that stands in the middle of a line.
std::optional<std::string> swallowed_label(const std::string& comment) {
  static const std::regex kLabel("[.;:)] ([A-Z]\\w+)  +\\S|[.;)] (Promise|World): ");
  std::smatch match;
  if (!std::regex_search(comment, match, kLabel)) return std::nullopt;
  return match[1].matched ? match[1].str() : match[2].str();
}

class Comments {
 public:
  explicit Comments(std::string_view file) : file_(file) {}

  void add(const std::string& text) {
    static const std::regex kComment("^( *)//(?!/)(.*)$");
    ++line_;
    std::smatch match;
    if (!std::regex_match(text, match, kComment)) {
      table_.reset();
      return;
    }
    if (columns(text) > kMostColumns) {
      report(fmt::format("a comment line of {} columns; at most {}", columns(text), kMostColumns));
    }
    if (std::exchange(margin_, match[1].length()) != match[1].length()) table_.reset();
    add_comment(match[2]);
  }

  std::vector<std::string> take() { return std::move(problems_); }

 private:
  void add_comment(const std::string& comment) {
    if (comment.find_first_not_of(' ') == std::string::npos) {
      table_.reset();
    } else if (!table_) {
      table_ = table_of_row(comment, line_);
    } else if (!belongs_to(*table_, comment)) {
      report(
          fmt::format("breaks the table that begins in line {}; indent the text to its column, or leave an empty "
                      "comment line before it",
                      table_->line));
      table_.reset();
    }
    if (!table_) return;
    if (const auto label = swallowed_label(comment)) {
      report(fmt::format("'{}' begins a row in the middle of a line; begin a line with it", *label));
    }
  }

  void report(const std::string& what) { problems_.push_back(fmt::format("{}:{}: {}", file_, line_, what)); }

  std::string file_;
  int line_ = 0;
  std::ptrdiff_t margin_ = 0;   // blanks before "//" of the last comment line
  std::optional<Table> table_;  // of the paragraph under way
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> comment_problems(std::string_view file, std::string_view text) {
  Comments comments(file);
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) comments.add(line);
  return comments.take();
}

}  // namespace loom::build_test
