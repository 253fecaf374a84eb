// Promise: the arena keeps what is given back and hands it out again. Sanitizers get an arena without a pool.
#include <gtest/gtest.h>

#include "engine/device/arena.h"

namespace loom::device {
namespace {

TEST(ArenaPool, APieceThatWasGivenBackCostsNothingTheSecondTime) {
  const auto arena = Arena::create();
  constexpr std::size_t kBytes = 1 << 20;
  for (int i = 0; i < 200; ++i) arena->take(kBytes);
  const std::size_t first = arena->system_bytes();
  EXPECT_LE(first, std::size_t{64} << 20);  // one chunk; 200 pieces would be 200 MiB
  const std::byte* piece = arena->take(kBytes).get();
  EXPECT_EQ(arena->take(kBytes).get(), piece);
  EXPECT_EQ(arena->system_bytes(), first);
}

}  // namespace
}  // namespace loom::device
