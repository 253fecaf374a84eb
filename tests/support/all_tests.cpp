// The program of most GoogleTest sources (cmake/LoomTestProgram.cmake). It runs the tests of the program by whose name
// it was started: those of that program's sources. Of --gtest_filter, too, only these are run.
//
// Exit      as GoogleTest's; 2 where the name is no program's.
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <set>
#include <string>

namespace {

// The sources of a program, from the table that CMake writes: lines "PROGRAM SOURCE".
std::set<std::string> sources_of(const std::string& program) {
  std::ifstream table(LOOM_TEST_PROGRAMS);
  std::set<std::string> sources;
  for (std::string name, source; table >> name && std::getline(table >> std::ws, source);) {
    if (name == program) sources.insert(source);
  }
  return sources;
}

// The tests of all other sources, each behind a colon.
std::string tests_outside(const std::set<std::string>& sources) {
  std::string names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!sources.contains(test.file())) names += fmt::format(":{}.{}", suite.name(), test.name());
    }
  }
  return names;
}

// GoogleTest shows its filter once the tests are chosen: the one that was given, not thousands of names.
class GivenFilter final : public testing::EmptyTestEventListener {
 public:
  explicit GivenFilter(std::string filter) : filter_(std::move(filter)) {}
  void OnTestProgramStart(const testing::UnitTest&) override { testing::GTEST_FLAG(filter) = filter_; }

 private:
  std::string filter_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const std::string program = std::filesystem::path(argv[0]).filename();
  const std::set<std::string> sources = sources_of(program);
  if (sources.empty()) {
    fmt::print(stderr, "{}: no test program has this name; {} lists them, and each is a link to this one\n", program,
               LOOM_TEST_PROGRAMS);
    return 2;
  }
  const std::string given = testing::GTEST_FLAG(filter);
  testing::UnitTest::GetInstance()->listeners().Append(new GivenFilter(given));
  testing::GTEST_FLAG(filter) = given + (given.find('-') == std::string::npos ? "-" : "") + tests_outside(sources);
  return RUN_ALL_TESTS();
}
