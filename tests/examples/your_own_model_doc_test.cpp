// Promise: the code of docs/your-own-model.md is that of the compiled example, all of it and in its order.
// World:   this checkout.
#include <algorithm>
#include <gmock/gmock.h>
#include <sstream>
#include <vector>

#include "tests/support/files.h"

namespace loom::test {
namespace {

const std::filesystem::path kSource = LOOM_SOURCE_DIR;

using Lines = std::vector<std::string>;

Lines lines_of(const std::filesystem::path& path) {
  Lines lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// Those inside ``` fences of one language.
Lines fenced(const Lines& lines, const std::string& language) {
  Lines inside;
  bool open = false;
  for (const std::string& line : lines) {
    if (line.starts_with("```")) {
      open = line == "```" + language;
    } else if (open) {
      inside.push_back(line);
    }
  }
  return inside;
}

Lines without_blank(Lines lines) {
  std::erase_if(lines, [](const std::string& line) { return line.empty(); });
  return lines;
}

TEST(YourOwnModel, IsTheCompiledExample) {
  const Lines code = lines_of(kSource / "examples/pretrain_custom_model/main.cpp");
  ASSERT_FALSE(code.empty());
  EXPECT_EQ(without_blank(fenced(lines_of(kSource / "docs/your-own-model.md"), "cpp")), without_blank(code));
}

TEST(YourOwnModel, IsShort) { EXPECT_LT(lines_of(kSource / "examples/pretrain_custom_model/main.cpp").size(), 120u); }

}  // namespace
}  // namespace loom::test
