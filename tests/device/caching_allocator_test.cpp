// Promise: the same requests give the same allocated and reserved bytes as PyTorch's caching allocator, by its rules.
#include "engine/device/caching_allocator.h"

#include <gtest/gtest.h>

#include "tests/device/sizes_and_streams.h"

namespace loom::device {
namespace {

constexpr std::int64_t kKiB = 1 << 10;
constexpr StreamId kPool = StreamId::kCompute;

class CachingAllocatorRules : public ::testing::Test {
 protected:
  CachingAllocator::Piece* take(std::int64_t bytes, StreamId pool = kPool) { return allocator.allocate(bytes, pool); }
  std::int64_t allocated() const { return allocator.stats().allocated_bytes; }
  std::int64_t reserved() const { return allocator.stats().reserved_bytes; }

  CachingAllocator allocator{std::int64_t{1} << 40};
};

TEST_F(CachingAllocatorRules, SmallRequestsShareSegmentsOfTwoMiBAndCountRoundedTo512Bytes) {
  take(1);
  EXPECT_EQ(allocated(), 512);
  take(513);
  EXPECT_EQ(allocated(), 512 + 1024);
  take(kMiB);  // the largest small request still finds room
  EXPECT_EQ(reserved(), 2 * kMiB);
  take(kMiB);
  EXPECT_EQ(reserved(), 4 * kMiB);
}

TEST_F(CachingAllocatorRules, RequestsBelowTenMiBShareSegmentsOfTwenty) {
  take(9 * kMiB);
  EXPECT_EQ(reserved(), 20 * kMiB);
  take(9 * kMiB);
  EXPECT_EQ(reserved(), 20 * kMiB);
  take(3 * kMiB);  // 2 MiB are left
  EXPECT_EQ(reserved(), 40 * kMiB);
}

TEST_F(CachingAllocatorRules, LargerRequestsGetASegmentRoundedToTwoMiB) {
  take(10 * kMiB);
  EXPECT_EQ(reserved(), 10 * kMiB);
  take(11 * kMiB);
  EXPECT_EQ(reserved(), 22 * kMiB);
}

TEST_F(CachingAllocatorRules, ARestOfOneMiBOrLessIsNotSplitOffAndCounts) {
  take(11 * kMiB);  // of a segment of 12
  EXPECT_EQ(allocated(), 12 * kMiB);
  take(11 * kMiB - 512);  // 1 MiB and 512 bytes are left
  EXPECT_EQ(allocated(), 12 * kMiB + 11 * kMiB - 512);
}

TEST_F(CachingAllocatorRules, TheSmallestFreePieceThatFitsIsUsedThenTheLowestAddress) {
  CachingAllocator::Piece* large = take(40 * kMiB);
  CachingAllocator::Piece* first = take(20 * kMiB);
  CachingAllocator::Piece* second = take(20 * kMiB);
  allocator.free(large);
  allocator.free(second);
  allocator.free(first);
  EXPECT_EQ(take(20 * kMiB), first);
  EXPECT_EQ(take(19 * kMiB), second);  // and keeps its rest
  EXPECT_EQ(allocated(), 40 * kMiB);
  EXPECT_EQ(take(12 * kMiB), large);
  EXPECT_EQ(allocated(), 52 * kMiB);
  EXPECT_EQ(reserved(), 80 * kMiB);
}

TEST_F(CachingAllocatorRules, FreeNeighboursOfASegmentMerge) {
  CachingAllocator::Piece* a = take(5 * kMiB);
  CachingAllocator::Piece* b = take(5 * kMiB);
  CachingAllocator::Piece* c = take(5 * kMiB);
  allocator.free(a);
  allocator.free(c);  // with the free rest behind it: 10 MiB
  allocator.free(b);
  EXPECT_EQ(allocated(), 0);
  take(18 * kMiB);
  EXPECT_EQ(reserved(), 20 * kMiB);
  EXPECT_EQ(allocated(), 18 * kMiB);
}

TEST_F(CachingAllocatorRules, StreamsAndSizesHavePoolsOfTheirOwn) {
  allocator.free(take(12 * kMiB));
  take(12 * kMiB, kReduceScatterStream);
  EXPECT_EQ(reserved(), 24 * kMiB);
  take(512);  // small: not from the free large piece
  EXPECT_EQ(reserved(), 26 * kMiB);
}

TEST_F(CachingAllocatorRules, PeaksRestartFromThePresentValues) {
  CachingAllocator::Piece* piece = take(12 * kMiB);
  take(512);
  allocator.free(piece);
  EXPECT_EQ(allocator.stats().peak_allocated_bytes, 12 * kMiB + 512);
  allocator.reset_peaks();
  EXPECT_EQ(allocator.stats().peak_allocated_bytes, 512);
  EXPECT_EQ(allocator.stats().peak_reserved_bytes, 14 * kMiB);
}

TEST(CachingAllocatorOfASmallDevice, GivesCachedSegmentsBackBeforeItRefuses) {
  CachingAllocator allocator(30 * kMiB);
  allocator.free(allocator.allocate(20 * kMiB, kGatherStream));
  CachingAllocator::Piece* half = allocator.allocate(5 * kMiB, kPool);  // 20 MiB do not fit beside the cached 20
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(allocator.stats().reserved_bytes, 20 * kMiB);
  EXPECT_EQ(allocator.allocate(16 * kMiB, kPool), nullptr);
  EXPECT_EQ(allocator.stats().reserved_bytes, 20 * kMiB);
  EXPECT_EQ(allocator.stats().segments, 1);
  EXPECT_EQ(allocator.stats().cache_flushes, 1) << "the second time there was nothing to give back";
  allocator.free(half);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().cache_flushes, 1) << "asked for, not forced";
}

// --- Pools and what is free in them

// Six pieces of 1 and 2 MiB by turns in one segment of 20; those of 2 are given back: holes of 2, 2 and 2 with the 11
// behind them. 1 MiB is small and has segments of 2 of its own.
TEST_F(CachingAllocatorRules, FragmentationIsTheShareOfFreeBytesThatOneRequestCannotHave) {
  std::vector<CachingAllocator::Piece*> twos;
  for (int i = 0; i < 3; ++i) {
    take(kMiB + 512);
    twos.push_back(take(2 * kMiB));
  }
  for (CachingAllocator::Piece* piece : twos) allocator.free(piece);
  const std::vector<PoolStats> pools = allocator.pools();
  ASSERT_EQ(pools.size(), 1u);
  EXPECT_EQ(pools[0].pool, "compute");
  EXPECT_EQ(pools[0].reserved_bytes, 20 * kMiB);
  EXPECT_EQ(pools[0].allocated_bytes, 3 * (kMiB + 512));
  EXPECT_EQ(pools[0].free_bytes(), 17 * kMiB - 3 * 512);
  EXPECT_EQ(pools[0].largest_free_bytes, 13 * kMiB - 3 * 512);  // the last hole and the rest behind it
  EXPECT_DOUBLE_EQ(pools[0].fragmentation(), 1 - (13.0 * kMiB - 1536) / (17.0 * kMiB - 1536));
}

// The same requests as above, where the pieces of 2 MiB are temporary and the others stay.
TEST(PoolsByLife, ShortLivedPiecesLeaveNoHolesBetweenStaticOnes) {
  CachingAllocator allocator(std::int64_t{1} << 40, AllocatorSettings{.pools = PoolRule::kByLife});
  std::vector<CachingAllocator::Piece*> temporary;
  for (int i = 0; i < 3; ++i) {
    allocator.allocate(kMiB + 512, kPool, LifeClass::kStatic);
    temporary.push_back(allocator.allocate(2 * kMiB, kPool, LifeClass::kTemporary));
  }
  for (CachingAllocator::Piece* piece : temporary) allocator.free(piece);
  const std::vector<PoolStats> pools = allocator.pools();
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_EQ(pools[0].pool, "static");
  EXPECT_EQ(pools[0].reserved_bytes, 3 * (kMiB + 512)) << "segments of exactly their size";
  EXPECT_EQ(pools[0].free_bytes(), 0);
  EXPECT_EQ(pools[0].fragmentation(), 0);
  EXPECT_EQ(pools[1].pool, "temporary");
  EXPECT_EQ(pools[1].largest_free_bytes, 20 * kMiB) << "one piece again";
  EXPECT_EQ(pools[1].fragmentation(), 0);
}

TEST(PoolsByLife, SmallStaticPiecesShareSegmentsAndStreamsShareNothing) {
  CachingAllocator allocator(std::int64_t{1} << 40, AllocatorSettings{.pools = PoolRule::kByLife});
  allocator.allocate(kKiB, kPool, LifeClass::kStatic);
  allocator.allocate(kKiB, kPool, LifeClass::kStatic);
  EXPECT_EQ(allocator.stats().reserved_bytes, 2 * kMiB);
  allocator.allocate(kKiB, kGatherStream, LifeClass::kStatic);
  EXPECT_EQ(allocator.stats().reserved_bytes, 4 * kMiB);
  EXPECT_EQ(allocator.pools().size(), 1u);
}

}  // namespace
}  // namespace loom::device
