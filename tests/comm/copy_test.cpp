// Promise: copying between ranks' memory moves exactly the bytes asked for, whatever their size and alignment.

#include "engine/comm/local/copy.h"

#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

namespace loom::comm {
namespace {

constexpr std::size_t kRoom = 128;  // on each side, to see what must stay

class CopiedBytes : public testing::TestWithParam<std::size_t> {};

TEST_P(CopiedBytes, ArriveAndNothingElseChanges) {
  const std::size_t bytes = GetParam();
  std::vector<std::uint8_t> from(bytes + 2 * kRoom);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
  for (const std::size_t to_offset : {std::size_t{0}, std::size_t{3}, std::size_t{48}}) {
    for (const std::size_t from_offset : {std::size_t{0}, std::size_t{5}}) {
      std::vector<std::uint8_t> to(bytes + 2 * kRoom, 0xee);
      copy_between_ranks(to.data() + kRoom + to_offset, from.data() + from_offset, bytes);
      std::vector<std::uint8_t> expected(to.size(), 0xee);
      if (bytes > 0) std::memcpy(expected.data() + kRoom + to_offset, from.data() + from_offset, bytes);
      EXPECT_EQ(to, expected) << "offsets " << to_offset << " and " << from_offset;
    }
  }
}

// 4 MB is where copies begin to bypass the caches.
INSTANTIATE_TEST_SUITE_P(Sizes, CopiedBytes,
                         testing::Values(0, 1, 63, 64, 4097, (std::size_t{4} << 20) - 1, std::size_t{4} << 20,
                                         (std::size_t{4} << 20) + 77));

}  // namespace
}  // namespace loom::comm
