// Promise: a file is there whole or not at all, links and permissions stay, and what is no file is never replaced.
#include "engine/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <sys/stat.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(AtomicFile, AppearsAtCommit) {
  const auto folder = fresh_folder();
  AtomicFile file(folder / "a");
  file.write(bytes_of("one "));
  file.write(bytes_of("two"));
  EXPECT_FALSE(fs::exists(folder / "a"));
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "one two");
  EXPECT_EQ(files_in(folder), 1);
}

TEST(AtomicFile, WithoutCommitLeavesWhatWasThere) {
  const auto folder = fresh_folder();
  write_file(folder / "a", "old");
  { AtomicFile(folder / "a").write(bytes_of("new")); }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(files_in(folder), 1);
}

TEST(AtomicFile, NamesTheFileItCannotCreate) {
  const auto path = fresh_folder() / "absent" / "a";
  EXPECT_EQ(message_of<ConfigError>([&] { AtomicFile{path}; }),
            path.string() + ": cannot create: No such file or directory");
}

TEST(AtomicFile, RefusesWhatIsNoFileBeforeAnythingIsWritten) {
  const auto folder = fresh_folder();
  fs::create_directories(folder / "a" / "full");
  EXPECT_EQ(message_of<ConfigError>([&] { AtomicFile{folder / "a"}; }),
            (folder / "a").string() + ": is a folder; give the path of a file");
  fs::create_symlink("round", folder / "round");
  EXPECT_EQ(message_of<ConfigError>([&] { AtomicFile{folder / "round"}; }),
            (folder / "round").string() + ": its symbolic links lead in a circle; give the path of a file");
  EXPECT_EQ(files_in(folder), 2);
}

TEST(AtomicFile, KeepsLinksAndWritesWhatTheyPointTo) {
  const auto folder = fresh_folder();
  write_file(folder / "real" / "file", "old");
  fs::create_symlink("real/file", folder / "near");
  fs::create_symlink(folder / "near", folder / "far");
  fs::create_symlink("real/new", folder / "dangling");
  write_text(folder / "far", "new");
  write_text(folder / "dangling", "made");
  EXPECT_EQ(read_file(folder / "real" / "file"), "new");
  EXPECT_EQ(read_file(folder / "real" / "new"), "made");
  for (const char* link : {"near", "far", "dangling"}) EXPECT_TRUE(fs::is_symlink(folder / link)) << link;
  EXPECT_EQ(files_in(folder), 4);
  EXPECT_EQ(files_in(folder / "real"), 2);
}

TEST(AtomicFile, KeepsPermissionsAndWhatOtherHardLinksHold) {
  const auto folder = fresh_folder();
  write_file(folder / "a", "old");
  fs::create_hard_link(folder / "a", folder / "other");
  fs::permissions(folder / "a", fs::perms(0640));
  write_text(folder / "a", "new");
  EXPECT_EQ(fs::status(folder / "a").permissions(), fs::perms(0640));
  EXPECT_EQ(read_file(folder / "other"), "old");
}

TEST(AtomicFile, CannotBeLedToAnotherFileThroughItsTemporary) {
  const auto folder = fresh_folder();
  write_file(folder / "victim", "mine");
  std::set<std::string> names;
  for (int time = 0; time < 3; ++time) {
    const AtomicFile file(folder / "a");
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename() != "victim") names.insert(entry.path().filename());
    }
  }
  EXPECT_EQ(names.size(), 3u) << "the same name twice can be foreseen";
  EXPECT_EQ(read_file(folder / "victim"), "mine");
}

TEST(AtomicFile, WritesAFifoAndADeviceStraight) {
  const auto folder = fresh_folder();
  const fs::path fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  write_text(fifo, "through");
  std::array<char, 16> got{};
  EXPECT_EQ(::read(reader, got.data(), got.size()), 7);
  ::close(reader);
  EXPECT_STREQ(got.data(), "through");
  EXPECT_TRUE(fs::is_fifo(fifo));
  fs::create_symlink("/dev/full", folder / "full");
  EXPECT_EQ(message_of<Error>([&] { write_text(folder / "full", "x"); }),
            (folder / "full").string() + ": cannot write: No space left on device");
  EXPECT_TRUE(fs::is_symlink(folder / "full"));
  EXPECT_EQ(files_in(folder), 2);
}

TEST(AtomicFile, WritesAnOpenFileOfTheProcessBehindWhatIsThere) {
  const auto path = fresh_folder() / "a";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(::write(fd, "one ", 4), 4);
  write_text(fmt::format("/dev/fd/{}", fd), "two");
  ::close(fd);
  EXPECT_EQ(read_file(path), "one two");
}

TEST(AtomicFile, TakesNothingAfterCommit) {
  const auto path = fresh_folder() / "a";
  AtomicFile file(path);
  file.commit();
  EXPECT_EQ(message_of<InvariantError>([&] { file.write(bytes_of("late")); }),
            "internal: write to '" + path.string() + "' after commit");
}

}  // namespace
}  // namespace loom::io
