// Promise: the checksums are those of zip and of TensorBoard, whole or in pieces.
#include "engine/io/checksum.h"

#include <gtest/gtest.h>
#include <string_view>

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

}  // namespace
}  // namespace loom::io
