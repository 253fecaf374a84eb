// Promise: docs/operators.md names every operator that a model can call.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

const std::filesystem::path kSource = LOOM_SOURCE_DIR;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Functions that a header of operators declares at namespace scope.
std::set<std::string> declared(const std::filesystem::path& header) {
  static const std::regex declaration(R"((?:^|\n)(?:[A-Z]\w*|std::vector<Tensor>|std::int64_t) (\w+)\()");
  const std::string text = text_of(header);
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

TEST(OperatorsPage, NamesEveryOperator) {
  const std::string page = text_of(kSource / "docs/operators.md");
  std::size_t operators = 0;
  for (const char* header : {"ops.h", "ops/composed.h", "ops/general.h", "ops/moe.h", "ops/vision.h"}) {
    for (const std::string& name : declared(kSource / "engine/tensor" / header)) {
      ++operators;
      EXPECT_TRUE(std::regex_search(page, std::regex("ops::(composed::)?" + name + "\\b"))) << name << " of " << header;
    }
  }
  EXPECT_GE(operators, 50u);
}

}  // namespace
