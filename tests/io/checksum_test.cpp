// Promise: the checksums are those of zip and of TensorBoard, whole or in pieces; that of a file is of what was written
//          into it.
#include "engine/io/checksum.h"

#include <gtest/gtest.h>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/summed_file.h"
#include "tests/support/files.h"

namespace loom::io {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Checksum, HasTheCheckValuesOfTheStandards) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xCBF43926u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32({}), 0u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Checksum, GoesOnBehindEarlierBytes) {
  EXPECT_EQ(crc32(bytes_of("56789"), crc32(bytes_of("1234"))), 0xCBF43926u);
  EXPECT_EQ(crc32c(bytes_of("56789"), crc32c(bytes_of("1234"))), 0xE3069283u);
}

TEST(Checksum, OfTwoPartsIsThatOfTheWhole) {
  const std::string whole = "123456789";
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    const std::string first = whole.substr(0, cut), second = whole.substr(cut);
    EXPECT_EQ(crc32c_of_both(crc32c(bytes_of(first)), crc32c(bytes_of(second)), second.size()), 0xE3069283u) << cut;
  }
  const std::string zeros(std::size_t{3} << 20, '\0');
  EXPECT_EQ(crc32c_of_both(crc32c(bytes_of(whole)), crc32c(bytes_of(zeros)), zeros.size()),
            crc32c(bytes_of(whole + zeros)));
}

// Around the size of its buffer, 1 MiB.
TEST(SummedFile, KnowsTheSizeAndChecksumOfWhatItWrote) {
  const auto path = test::fresh_folder() / "file";
  std::string whole;
  SummedFile file(path);
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, (std::size_t{1} << 20) - 3, std::size_t{1} << 20,
                                 std::size_t{5}, (std::size_t{3} << 20) + 1, std::size_t{1}}) {
    std::string piece;
    for (std::size_t i = 0; i < size; ++i) piece.push_back(static_cast<char>((whole.size() + i) * 7919 >> 8));
    file.append(bytes_of(piece));
    whole += piece;
    EXPECT_EQ(file.size(), whole.size());
  }
  EXPECT_EQ(file.finish(), (FileSum{whole.size(), crc32c(bytes_of(whole))}));
  EXPECT_TRUE(test::read_file(path) == whole);
}

TEST(SummedFile, MayBeEmpty) {
  const auto path = test::fresh_folder() / "file";
  EXPECT_EQ(SummedFile(path).finish(), FileSum{});
  EXPECT_EQ(std::filesystem::file_size(path), 0u);
  EXPECT_EQ(test::message_of<Error>([&] { SummedFile{path}; }), path.string() + ": cannot create: File exists");
}

}  // namespace
}  // namespace loom::io
