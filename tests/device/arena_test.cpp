// Promise: pieces of the arena are aligned, never shared by two owners, and outlive the handle on their arena.
#include "engine/device/arena.h"

#include <cstring>
#include <gtest/gtest.h>
#include <set>
#include <vector>

namespace loom::device {
namespace {

TEST(Arena, PiecesAreAlignedAndHeldByOneOwnerAtATime) {
  const auto arena = Arena::create();
  std::vector<std::shared_ptr<std::byte>> pieces;
  std::set<std::byte*> begins;
  for (std::size_t bytes : {0u, 1u, 64u, 65u, 4000u, 4096u, 5000u, 1u << 20}) {
    for (int copy = 0; copy < 3; ++copy) {
      pieces.push_back(arena->take(bytes));
      std::memset(pieces.back().get(), static_cast<int>(pieces.size()), bytes);
      EXPECT_EQ(reinterpret_cast<std::size_t>(pieces.back().get()) % 64, 0u) << bytes;
      EXPECT_TRUE(begins.insert(pieces.back().get()).second) << bytes;
    }
  }
  std::size_t number = 0;
  for (std::size_t bytes : {0u, 1u, 64u, 65u, 4000u, 4096u, 5000u, 1u << 20}) {
    for (int copy = 0; copy < 3; ++copy, ++number) {
      for (std::size_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(pieces[number].get()[i], std::byte(number + 1)) << "byte " << i << " of piece " << number;
      }
    }
  }
}

TEST(Arena, APieceLargerThanAChunkIsServed) {
  const auto arena = Arena::create();
  constexpr std::size_t kBytes = (std::size_t{80} << 20) + 3;
  const auto piece = arena->take(kBytes);
  piece.get()[0] = std::byte{1};
  piece.get()[kBytes - 1] = std::byte{2};
  EXPECT_GE(arena->system_bytes(), kBytes);
}

TEST(Arena, APieceOutlivesTheHandleOnItsArena) {
  auto arena = Arena::create();
  const auto piece = arena->take(100);
  arena.reset();
  std::memset(piece.get(), 7, 100);
  EXPECT_EQ(piece.get()[99], std::byte{7});
}

}  // namespace
}  // namespace loom::device
