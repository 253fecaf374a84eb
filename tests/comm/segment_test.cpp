// Promise: a shared segment lives until its last member lets go of it, and not longer.

#include "engine/comm/local/segment.h"

#include <unistd.h>

#include <cerrno>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "engine/launch/run_ranks.h"

namespace loom::comm {
namespace {

bool is_mapped(std::byte* page) {
  unsigned char resident = 0;
  return mincore(page, 4096, &resident) == 0 || errno != ENOMEM;
}

TEST(SharedSegment, OutlivesAllButItsLastMember) {
  launch::run_ranks(3, {.timeout = std::chrono::minutes(1)}, [](RankContext& context, World& world) {
    const auto group = world.everyone();
    auto segment = group->share(kHostLane, 4096, "segment");
    std::byte* const page = segment->data();
    if (context.rank() == 1) page[7] = std::byte{42};
    group->barrier(kHostLane, "written");
    if (context.rank() != 2) segment.reset();
    group->barrier(kHostLane, "two let go");
    if (context.rank() == 2) {
      EXPECT_EQ(page[7], std::byte{42});
      EXPECT_EQ(segment.use_count(), 1);
      segment.reset();
    }
    group->barrier(kHostLane, "all let go");
  });
}

TEST(SharedSegment, IsGivenBackToTheSystemByItsLastOwner) {
  auto segment = make_anonymous_segment(4096);
  std::byte* const page = segment->data();
  EXPECT_TRUE(is_mapped(page));
  segment.reset();
  EXPECT_FALSE(is_mapped(page));
}

TEST(SharedSegment, StartsOnAHugePageWhereItHoldsOne) {
  const auto segment = make_anonymous_segment((std::size_t{4} << 20) + 5);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment->data()) % (std::size_t{2} << 20), 0u);
  EXPECT_EQ(segment->data()[(std::size_t{4} << 20) + 4], std::byte{0});
}

TEST(MemoryFile, IsOneMemoryForAllWhoMapIt) {
  const MemoryFile file(8192);
  const auto first = map_memory_file(file.address(), 8192);
  const auto second = map_memory_file(file.address(), 8192);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_NE(first->data(), second->data());
  first->data()[5000] = std::byte{9};
  EXPECT_EQ(second->data()[5000], std::byte{9});
}

TEST(MemoryFile, IsNotMistakenForAnother) {
  const MemoryFile file(4096);
  MemoryFileAddress address = file.address();
  ++address.inode;
  EXPECT_EQ(map_memory_file(address, 4096), nullptr);
  EXPECT_EQ(map_memory_file({getpid(), 987654, 1}, 4096), nullptr);
}

}  // namespace
}  // namespace loom::comm
