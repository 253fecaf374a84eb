// Promise: a file is there whole or not at all.
#include "engine/io/atomic_file.h"

#include <gtest/gtest.h>
#include <iterator>
#include <string_view>

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

TEST(AtomicFile, NamesTheFileItCannotPutInPlace) {
  const auto folder = fresh_folder();
  fs::create_directories(folder / "a" / "full");
  EXPECT_EQ(message_of<Error>([&] { AtomicFile(folder / "a").commit(); }),
            (folder / "a").string() + ": cannot write: Is a directory");
  EXPECT_EQ(files_in(folder), 1);
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
