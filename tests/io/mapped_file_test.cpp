// Promise: a mapped file shows its bytes while it lives, and what cannot be mapped is named with the system's reason;
//          what is read from it later is what was there, or an error.
#include "engine/io/mapped_file.h"

#include <chrono>
#include <gtest/gtest.h>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using test::fresh_folder;
using test::message_of;
using test::write_file;

std::string_view text_in(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  EXPECT_EQ(text_in(MappedFile(write_file(fresh_folder() / "a", "twelve bytes"))), "twelve bytes");
}

TEST(MappedFile, OfAnEmptyFileHasNoBytes) {
  EXPECT_TRUE(MappedFile(write_file(fresh_folder() / "a", "")).bytes().empty());
}

TEST(MappedFile, KeepsItsAddressesWhenMoved) {
  const auto folder = fresh_folder();
  MappedFile first(write_file(folder / "a", "first"));
  const auto* const address = first.bytes().data();
  MappedFile second(write_file(folder / "b", "second"));
  second = std::move(first);
  EXPECT_EQ(second.bytes().data(), address);
  EXPECT_EQ(text_in(second), "first");
  EXPECT_EQ(second.path(), folder / "a");
  EXPECT_TRUE(first.bytes().empty());
}

TEST(MappedFile, NamesAMissingFile) {
  const auto path = fresh_folder() / "absent";
  EXPECT_EQ(message_of<ConfigError>([&] { MappedFile{path}; }),
            path.string() + ": cannot read: No such file or directory");
}

TEST(MappedFile, RefusesAFolder) {
  const auto folder = fresh_folder();
  EXPECT_EQ(message_of<ConfigError>([&] { MappedFile{folder}; }), folder.string() + ": not a regular file");
}

// --- What is read later

std::string read_again(const MappedFile& file, std::size_t offset, std::size_t count) {
  std::string text(count, ' ');
  FileReader(file).read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(FileReader, ReadsTheFileThatWasOpened) {
  const MappedFile file(write_file(fresh_folder() / "a", "twelve bytes"));
  EXPECT_EQ(read_again(file, 7, 5), "bytes");
}

TEST(FileReader, RefusesAFileThatIsNoLongerWhatItWas) {
  const auto folder = fresh_folder();
  const auto path = write_file(folder / "a", "twelve bytes");
  const MappedFile file(path);
  const auto refusal = [&] { return message_of<Error>([&] { read_again(file, 0, 5); }); };
  const std::string advice = "leave the file as it is while a run reads it, and start again";

  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::hours(1));
  EXPECT_EQ(refusal(), path.string() + ": was written to since the run opened it; " + advice);
  std::filesystem::resize_file(path, 3);
  EXPECT_EQ(refusal(), path.string() + ": had 12 bytes and has 3 now since the run opened it; " + advice);
  std::filesystem::rename(write_file(folder / "b", "twelve other"), path);
  EXPECT_EQ(refusal(), path.string() + ": was replaced by another file since the run opened it; " + advice);
  std::filesystem::remove(path);
  EXPECT_EQ(refusal(), path.string() + ": cannot be read any more: No such file or directory; " + advice);
}

}  // namespace
}  // namespace loom::io
