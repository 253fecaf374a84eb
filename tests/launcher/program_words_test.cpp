// Promise: the words behind a launcher's flags name a program that can be started, or an error says what is wrong.
// World:   a folder with a script, a program and a file that is neither; this test in the place of shardloom.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/launcher/program.h"
#include "tests/support/files.h"

namespace loom::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Words = std::vector<std::string>;

class Program : public ::testing::Test {
 protected:
  Program() {
    write("job.py", false);
    write("tool", true);
    write("notes.txt", false);
    write("bin/python3", true);
    ::setenv("PATH", (folder_ / "bin").c_str(), 1);
    ::unsetenv("PYTHON_EXEC");
  }
  ~Program() override { ::setenv("PATH", path_.c_str(), 1); }

  void write(const std::string& name, bool executable) const {
    fs::create_directories((folder_ / name).parent_path());
    test::write_file(folder_ / name, "#!/bin/sh\n");
    if (executable) fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static Words found(const Words& words, Entry entry = Entry::kGuess) {
    return find_program({.entry = entry, .words = words, .commands = {"train", "generate"}});
  }
  static std::string refusal(const Words& words, Entry entry = Entry::kGuess) {
    return test::message_of<ConfigError>([&] { found(words, entry); });
  }

  const fs::path folder_ = test::fresh_folder();
  const std::string path_ = std::getenv("PATH");
};

TEST_F(Program, ACommandIsRunByThisProgram) {
  EXPECT_THAT(found({"train", "--lr", "1"}),
              ElementsAre(fs::read_symlink("/proc/self/exe").string(), "train", "--lr", "1"));
  EXPECT_THAT(refusal({"train"}, Entry::kProgram), HasSubstr("train does not exist here or in PATH"));
}

TEST_F(Program, AScriptIsRunByPython) {
  EXPECT_THAT(found({at("job.py"), "-m"}), ElementsAre(at("bin/python3"), "-u", at("job.py"), "-m"));
  EXPECT_THAT(found({"pkg.main", "x"}, Entry::kModule), ElementsAre(at("bin/python3"), "-u", "-m", "pkg.main", "x"));
  EXPECT_THAT(found({at("job.py")}, Entry::kRunPath), SizeIs(5));
  EXPECT_THAT(found({"python3", at("job.py"), "x"}), ElementsAre(at("bin/python3"), at("job.py"), "x"));
  EXPECT_THAT(found({"python", at("job.py")}), ElementsAre(at("bin/python3"), at("job.py")));
  EXPECT_THAT(refusal({at("none.py")}), HasSubstr("does not exist or is not a file"));
  EXPECT_THAT(refusal({"python3", at("none.py")}), HasSubstr("does not exist or is not a file"));
  ::setenv("PYTHON_EXEC", "/no/python", 1);
  EXPECT_THAT(refusal({at("job.py")}), HasSubstr("there is no /no/python; install python3, or export PYTHON_EXEC"));
}

TEST_F(Program, AnExecutableFileIsRunItself) {
  EXPECT_THAT(found({at("tool"), "a"}), ElementsAre(at("tool"), "a"));
  EXPECT_THAT(found({at("tool"), "a"}, Entry::kProgram), ElementsAre(at("tool"), "a"));
  EXPECT_THAT(refusal({at("notes.txt")}), HasSubstr("is not executable; run chmod +x"));
  EXPECT_THAT(refusal({at("nothing")}), HasSubstr("does not exist; give a command of shardloom"));
  EXPECT_THAT(refusal({folder_.string()}), HasSubstr("is a folder"));
  EXPECT_THAT(refusal({}), HasSubstr("no program is given"));
}

}  // namespace
}  // namespace loom::launcher
