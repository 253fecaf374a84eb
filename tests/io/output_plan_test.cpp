// Promise: what a run would destroy, cannot write, or shares with another run is refused before it computes anything,
//          with the flags.
#include "engine/io/output_plan.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <sys/stat.h>
#include <thread>

#include "engine/core/error.h"
#include "engine/io/output_lock.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::StartsWith;

class OutputPlanFolder : public ::testing::Test {
 protected:
  std::string refusal() const {
    return message_of<ConfigError>([&] { plan.check(); });
  }
  std::string at(const std::string& name) const { return (folder / name).string(); }

  const fs::path folder = fresh_folder();
  OutputPlan plan;
};

TEST_F(OutputPlanFolder, RefusesAnOutputThatIsAnInputUnderAnyName) {
  const fs::path data = write_file(folder / "data" / "deep" / "1.txt", "text");
  fs::create_symlink(data, folder / "soft");
  fs::create_hard_link(data, folder / "hard");
  plan.reads("--data-path", folder / "data");
  for (const char* name : {"data/deep/1.txt", "data/./deep/../deep/1.txt", "soft", "hard"}) {
    OutputPlan with = plan;
    with.writes_file("--metrics-path", folder / name);
    EXPECT_EQ(message_of<ConfigError>([&] { with.check(); }),
              "--metrics-path: " + at(name) + " is also read by --data-path and would be lost; give another path");
  }
  plan.writes_file("--metrics-path", folder / "data" / "new.jsonl");
  plan.check();
}

TEST_F(OutputPlanFolder, RefusesTwoOutputsInOneFile) {
  fs::create_directories(folder / "out");
  fs::create_symlink("out", folder / "link");
  plan.writes_file("--json", folder / "out" / "x");
  plan.writes_file("--trace", folder / "link" / "x");
  EXPECT_EQ(refusal(), "--trace: " + at("link/x") + " is also written by --json; give each output a path of its own");
}

TEST_F(OutputPlanFolder, RefusesAFolderThatIsReadAndAFileThatIsAFolder) {
  fs::create_directories(folder / "model");
  OutputPlan over = plan;
  over.reads("--init-from-hf-path", folder / "model");
  over.writes_folder("--save", folder / "model" / "..//model");
  EXPECT_EQ(message_of<ConfigError>([&] { over.check(); }),
            "--save: " + at("model/..//model") +
                " is also what --init-from-hf-path reads; give another folder, so that nothing there is written over");
  plan.writes_folder("--save", folder / "out", {"config.json"});
  plan.writes_file("--metrics-path", folder / "out");
  EXPECT_EQ(refusal(), "--metrics-path: " + at("out") + " is the folder of --save; give the path of a file");
}

TEST_F(OutputPlanFolder, LetsSeveralOutputsShareADevice) {
  plan.writes_file("--json", "/dev/null");
  plan.writes_file("--trace", "/dev/null");
  plan.check();
  plan.prepare();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(OutputPlanFolder, MakesFoldersAndLeavesNothingElse) {
  plan.writes_folder("--save", folder / "a" / "b", {"config.json"});
  plan.writes_file("--report", folder / "c" / "r.html");
  plan.prepare();
  EXPECT_TRUE(fs::is_empty(folder / "a" / "b"));
  EXPECT_TRUE(fs::is_empty(folder / "c"));
}

TEST_F(OutputPlanFolder, DoesNotOpenAFifoWhoseReaderWouldSeeTheEnd) {
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  plan.writes_file("--json", folder / "fifo");
  plan.prepare();  // opening it would wait for a reader
}

TEST_F(OutputPlanFolder, NamesWhatCannotBeWritten) {
  write_file(folder / "file", "x");
  OutputPlan below = plan;
  below.writes_folder("--save", folder / "file" / "out");
  EXPECT_EQ(
      message_of<ConfigError>([&] { below.prepare(); }),
      "--save: cannot make the folder " + at("file/out") + ": Not a directory; give a folder that can be written");
  plan.writes_file("--metrics-path", folder);
  EXPECT_EQ(refusal(), "--metrics-path: " + folder.string() + ": is a folder; give the path of a file");
}

// --- One run at a time

TEST(OutputLock, RefusesASecondRunAndSaysWhoWrites) {
  const fs::path folder = fresh_folder();
  {
    const OutputLock first = OutputLock::of_folder("--save", folder);
    const std::string message = message_of<ConfigError>([&] { OutputLock::of_folder("--save", folder); });
    EXPECT_THAT(message, StartsWith("--save: another run writes " + folder.string() + " (process " +
                                    std::to_string(::getpid()) + " on "));
    EXPECT_THAT(message, ::testing::EndsWith("); wait for its end, or give another path"));
  }
  EXPECT_TRUE(fs::is_empty(folder));
  const OutputLock next = OutputLock::of_folder("--save", folder);
}

TEST(OutputLock, WaitsForItsTurnButNotForEver) {
  const fs::path file = fresh_folder() / "index";
  auto first = std::make_unique<OutputLock>(OutputLock::of_file("--data-cache-path", file));
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { OutputLock::of_file_in_turn("--data-cache-path", file, std::chrono::milliseconds(50)); }),
              StartsWith("--data-cache-path: another run writes " + file.string() + " (process "));
  std::jthread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    first.reset();
  });
  const OutputLock next = OutputLock::of_file_in_turn("--data-cache-path", file, std::chrono::minutes(1));
  EXPECT_TRUE(fs::exists(file.parent_path() / ".index.lock"));
}

TEST(OutputLock, TakesTheLockThatADeadRunLeftBehind) {
  const fs::path folder = fresh_folder();
  write_file(folder / ".m.jsonl.lock", "process 1 on elsewhere since long ago\n");
  const OutputLock lock = OutputLock::of_file("--metrics-path", folder / "m.jsonl");
  EXPECT_THAT(read_file(folder / ".m.jsonl.lock"), StartsWith("process " + std::to_string(::getpid()) + " on "));
}

}  // namespace
}  // namespace loom::io
