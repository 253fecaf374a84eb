// Promise: the arena keeps what is given back and hands it out again, in pieces of any size.
// World:   an arena with a pool; sanitizers get one without.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <vector>

#include "engine/device/arena.h"
#include "engine/device/intervals.h"

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

constexpr std::size_t kArenaMiB = std::size_t{1} << 20;

TEST(ArenaPool, ThePagesOfFreePiecesThatAreTooSmallServeALargerOne) {
  const auto arena = Arena::create();
  std::vector<std::shared_ptr<std::byte>> pieces;
  for (int i = 0; i < 32; ++i) {
    pieces.push_back(arena->take(6 * kArenaMiB));
    std::memset(pieces.back().get(), i, 6 * kArenaMiB);
  }
  const std::size_t before = arena->system_bytes();
  EXPECT_LE(before, 32 * 6 * kArenaMiB + 2 * kArenaMiB);
  for (std::size_t i = 0; i < pieces.size(); i += 2) pieces[i].reset();  // 96 MiB in holes of 6
  const auto large = arena->take(60 * kArenaMiB);
  EXPECT_EQ(arena->system_bytes(), before);
  std::memset(large.get(), 255, 60 * kArenaMiB);
  for (std::size_t i = 1; i < pieces.size(); i += 2) {
    const std::byte* piece = pieces[i].get();
    EXPECT_EQ(std::count(piece, piece + 6 * kArenaMiB, std::byte(i)), static_cast<std::ptrdiff_t>(6 * kArenaMiB)) << i;
  }
}

TEST(ArenaPool, PiecesOfSizesThatAreNoPowersOfTwoLieSideBySide) {
  const auto arena = Arena::create();
  std::vector<std::shared_ptr<std::byte>> pieces;
  for (int i = 0; i < 24; ++i) pieces.push_back(arena->take(17 * kArenaMiB / 2));
  EXPECT_LE(arena->system_bytes(), 24 * 17 * kArenaMiB / 2 + 2 * kArenaMiB);
}

TEST(ArenaPool, AStepThatRepeatsTakesNoMoreThanItsFirstTime) {
  const auto arena = Arena::create();
  std::vector<std::shared_ptr<std::byte>> kept;
  std::size_t first = 0;
  for (int step = 0; step < 6; ++step) {
    std::vector<std::shared_ptr<std::byte>> activations;
    for (int layer = 0; layer < 12; ++layer) {
      for (std::size_t bytes : {10 * kArenaMiB, 2 * kArenaMiB, 300 * kArenaMiB / 1024})
        activations.push_back(arena->take(bytes));
    }
    const auto gradient = arena->take(90 * kArenaMiB);
    for (int layer = 0; layer < 12; ++layer) {
      activations.resize(activations.size() - 3);
      kept.push_back(arena->take(5 * kArenaMiB));
    }
    kept.clear();
    if (step == 0) first = arena->system_bytes();
  }
  EXPECT_LE(first, 12 * (12 * kArenaMiB + 300 * kArenaMiB / 1024) + 90 * kArenaMiB + 24 * kArenaMiB);
  EXPECT_LE(arena->system_bytes(), first + 16 * kArenaMiB);
}

TEST(Intervals, WhatIsTakenAndGivenBackIsOnePieceAgain) {
  std::vector<std::byte> memory(1 << 12);
  Intervals free;
  free.insert({memory.data(), memory.size()});
  std::mt19937 random(7);
  std::map<std::byte*, std::size_t> taken;
  std::vector<int> owners(memory.size());
  for (int turn = 0; turn < 4000; ++turn) {
    const std::size_t bytes = 1 + random() % 200;
    std::byte* piece = random() % 2 == 0 ? free.take(bytes) : nullptr;
    if (piece != nullptr) {
      taken[piece] = bytes;
      for (std::size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(owners[static_cast<std::size_t>(piece - memory.data()) + i]++, 0);
    } else if (!taken.empty()) {
      const auto given = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
      free.insert({given->first, given->second});
      for (std::size_t i = 0; i < given->second; ++i)
        --owners[static_cast<std::size_t>(given->first - memory.data()) + i];
      taken.erase(given);
    }
    ASSERT_EQ(free.bytes(), static_cast<std::size_t>(std::count(owners.begin(), owners.end(), 0)));
  }
  for (const auto& [piece, bytes] : taken) free.insert({piece, bytes});
  const Interval whole = free.take_largest();
  EXPECT_EQ(whole.begin, memory.data());
  EXPECT_EQ(whole.bytes, memory.size());
  EXPECT_TRUE(free.empty());
}

TEST(Intervals, TheSmallestPieceThatIsLargeEnoughIsCut) {
  std::vector<std::byte> memory(100);
  Intervals free;
  free.insert({memory.data(), 30});
  free.insert({memory.data() + 40, 10});
  free.insert({memory.data() + 60, 20});
  EXPECT_EQ(free.take(9), memory.data() + 40);
  EXPECT_EQ(free.take(11), memory.data() + 60);
  EXPECT_EQ(free.take(31), nullptr);
  EXPECT_EQ(free.take_ending_at(memory.data() + 31).bytes, 0u);
  EXPECT_EQ(free.take_ending_at(memory.data() + 30).begin, memory.data());
  EXPECT_EQ(free.bytes(), 10u);
}

TEST(Intervals, APieceThatWouldLeaveTooSmallARestIsCutLast) {
  std::vector<std::byte> memory(100);
  Intervals free;
  free.insert({memory.data(), 12});
  free.insert({memory.data() + 20, 30});
  EXPECT_EQ(free.take(10, 5), memory.data() + 20);  // 12 would leave 2
  EXPECT_EQ(free.take(12, 5), memory.data());       // nothing is left of it
  EXPECT_EQ(free.take(18, 5), memory.data() + 30);  // 2 are left of the only one
}

}  // namespace
}  // namespace loom::device
