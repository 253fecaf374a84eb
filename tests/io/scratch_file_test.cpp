// Promise: a scratch file gives back what was put aside, has no name, and says where it could not be made or written.
#include "engine/io/scratch_file.h"

#include <gmock/gmock.h>
#include <string>

#include "engine/core/error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string read(ScratchFile& file, std::uint64_t at, std::size_t count) {
  std::string text(count, '\0');
  file.read(at, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(ScratchFile, GivesBackWhatWasAppended) {
  const auto folder = test::fresh_folder();
  ScratchFile file(folder);
  const std::string large(3 << 20, 'x');
  file.append(bytes_of("first"));
  EXPECT_EQ(read(file, 1, 3), "irs");
  file.append(bytes_of(large));
  file.append(bytes_of("last"));
  EXPECT_EQ(file.size(), 5 + large.size() + 4);
  EXPECT_EQ(read(file, 4, large.size() + 2), "t" + large + "l");
  EXPECT_EQ(read(file, file.size() - 4, 4), "last");
  EXPECT_THROW(read(file, file.size() - 3, 4), InvariantError);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(ScratchFile, SaysWhereItCannotBeMade) {
  const auto folder = test::fresh_folder() / "nowhere";
  EXPECT_EQ(test::message_of<ConfigError>([&] { ScratchFile file(folder); }),
            folder.string() + ": cannot make a temporary file: No such file or directory");
}

TEST(ScratchFile, SaysThatTheDiskIsFull) {
  const auto folder = test::fresh_folder();
  ScratchFile file(folder);
  const test::FileSizeLimit limit(1 << 20);
  EXPECT_EQ(test::message_of<Error>([&] { file.append(bytes_of(std::string(2 << 20, 'x'))); }),
            folder.string() + ": cannot write a temporary file: File too large");
}

}  // namespace
}  // namespace loom::io
