// Promise: a mapped file shows its bytes while it lives, and what cannot be mapped is named with the system's reason.
#include "engine/io/mapped_file.h"

#include <gtest/gtest.h>
#include <string_view>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

using test::fresh_folder;
using test::message_of;
using test::write_file;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  EXPECT_EQ(text_of(MappedFile(write_file(fresh_folder() / "a", "twelve bytes"))), "twelve bytes");
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
  EXPECT_EQ(text_of(second), "first");
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

}  // namespace
}  // namespace loom::io
