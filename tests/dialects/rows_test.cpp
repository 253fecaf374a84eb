// Promise: the rows of every dialect are whole: targets are keys that exist, a file with every key at its default is
//          the file without them, and a key that is misspelt by a letter is refused with the right name.
// World:   the tables.
#include <set>

#include "engine/dialects/row.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using ::testing::HasSubstr;

TEST(Rows, NameKeysThatThereAre) {
  for (const Dialect dialect : kDialects) {
    const Table* table = table_of(dialect);
    if (table == nullptr) continue;
    std::set<std::string_view> keys;
    for (const Row& row : table->rows) {
      EXPECT_TRUE(keys.insert(row.key).second) << row.key << " twice";
      if (row.act == Act::kFlag) {
        EXPECT_NE(job::find_key(row.target), nullptr) << row.key;
      }
      if (row.act == Act::kFlat) {
        EXPECT_EQ(sharding::fsdp2_key(row.target).name, row.target) << row.key;
      }
      if (row.act == Act::kRefused) {
        EXPECT_FALSE(row.text.empty()) << row.key;
      }
    }
  }
}

// The rows as a file, each key at its tool's default.
std::string file_of_defaults(const Table& table) {
  std::string text;
  std::vector<std::string> open;
  for (const Row& row : table.rows) {
    if (row.key.ends_with('*') || row.fallback.empty()) continue;
    std::vector<std::string> parts;
    std::string key(row.key);
    for (std::size_t begin = 0; begin <= key.size();) {
      const std::size_t end = std::min(key.find('.', begin), key.size());
      parts.push_back(key.substr(begin, end - begin));
      begin = end + 1;
    }
    for (std::size_t level = 0; level < parts.size(); ++level) {
      const bool is_last = level + 1 == parts.size();
      const bool is_open = level < open.size() && open[level] == parts[level];
      if (is_open && !is_last) continue;
      open.resize(std::min(open.size(), level));
      std::string value(row.fallback);
      if (value.starts_with('[') && value.find('{') != std::string::npos) {  // braces stand in quotes
        std::string quoted = "[";
        for (std::size_t begin = 1; begin < value.size();) {
          const std::size_t end = std::min(value.find(", ", begin), value.size() - 1);
          quoted += fmt::format("{}\"{}\"", quoted.size() > 1 ? ", " : "", value.substr(begin, end - begin));
          begin = end + 2;
        }
        value = quoted + "]";
      }
      text += fmt::format("{:{}}{}:{}{}\n", "", 2 * level, parts[level], is_last ? " " : "", is_last ? value : "");
      if (!is_last) open.push_back(parts[level]);
    }
  }
  return text;
}

TEST(Rows, AFileOfDefaultsIsAFileWithout) {
  for (const auto& [table, smallest] : {std::pair<const Table*, std::string>(&native_table(), "features: {}\n"),
                                        {&llm_table(), "optimization: {}\n"}}) {
    const Translation all = read(file_of_defaults(*table)), none = read(smallest);
    EXPECT_THAT(all.refused, ::testing::IsEmpty());
    EXPECT_THAT(differences(resolve(all, context_of({})), resolve(none, context_of({}))), ::testing::IsEmpty())
        << file_of_defaults(*table);
  }
}

TEST(Rows, AKeyMisspeltByALetterIsRefusedWithTheRightName) {
  int tried = 0;
  for (const auto& [table, sign] :
       {std::pair<const Table*, std::string>(&native_table(), "tools"), {&llm_table(), "optimization"}}) {
    for (const Row& row : table->rows) {
      const std::size_t dot = row.key.rfind('.');
      const std::string name(row.key.substr(dot + 1));
      if (name == "*" || name.size() < 6 || row.key.starts_with(sign)) continue;
      const std::string section(row.key.substr(0, dot));
      const bool is_open =
          std::ranges::any_of(table->rows, [&](const Row& other) { return other.key == section + ".*"; });
      if (is_open && section != "model") continue;
      std::string text = fmt::format("{}: {{}}\n", sign), indent;
      for (std::size_t begin = 0; begin <= section.size();) {
        const std::size_t end = std::min(section.find('.', begin), section.size());
        text += fmt::format("{}{}:\n", indent, section.substr(begin, end - begin));
        indent += "  ";
        begin = end + 1;
      }
      const std::string wrong = name + "q";
      const std::string message = refusal(text + fmt::format("{}{}: 1\n", indent, wrong));
      EXPECT_THAT(message, HasSubstr(fmt::format("unknown key '{}.{}'; did you mean {}?", section, wrong, row.key)));
      ++tried;
    }
  }
  EXPECT_GT(tried, 150);
}

}  // namespace
}  // namespace loom::dialects
