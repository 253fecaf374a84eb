// Promise: a host buffer lies on the node of the rank's cores where the system grants it; where it does not, the buffer
//          is ordinary memory that works the same, and that is said once.
// World:   a machine of two nodes made of fakes, and this machine through libnuma.

#include "offload/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utility>

#include "engine/core/error.h"
#include "tests/offload/fake_machine.h"
#include "tests/support/files.h"

namespace loom::offload {
namespace {

using test::FakeMachine;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HostBuffer, PrefersTheNodeOfTheCallingThread) {
  FakeMachine machine;
  const HostBuffer buffer(100, {}, machine);
  EXPECT_EQ(buffer.node(), 1);
  EXPECT_THAT(machine.preferred, ElementsAre(1));
  EXPECT_FALSE(buffer.pinned());
  EXPECT_THAT(machine.said, IsEmpty());
}

TEST(HostBuffer, NeedsNoPlacementOnOneNode) {
  FakeMachine machine;
  machine.node_list = {0};
  machine.this_node = 0;
  const HostBuffer buffer(100, {}, machine);
  EXPECT_EQ(buffer.node(), 0);
  EXPECT_THAT(machine.preferred, IsEmpty());
  EXPECT_THAT(machine.said, IsEmpty());
}

TEST(HostBuffer, IsOrdinaryMemoryWherePlacementIsRefusedAndSaysSoOnce) {
  FakeMachine machine;
  machine.placement_error = EPERM;
  const HostBuffer first(100, {}, machine);
  const HostBuffer second(100, {}, machine);
  EXPECT_EQ(first.node(), std::nullopt);
  std::ranges::fill(first.as<std::uint8_t>(), std::uint8_t{7});
  EXPECT_EQ(first.as<std::uint8_t>()[99], 7);
  EXPECT_THAT(machine.said, ElementsAre("host memory: placement on NUMA node 1 refused (Operation not permitted); "
                                        "buffers are ordinary memory"));
}

TEST(HostBuffer, IsOrdinaryMemoryWithoutNumaAndSaysSoOnce) {
  FakeMachine machine;
  machine.node_list = {};
  machine.this_node = std::nullopt;
  const HostBuffer first(100, {}, machine);
  const HostBuffer second(100, {}, machine);
  EXPECT_EQ(first.node(), std::nullopt);
  EXPECT_THAT(machine.preferred, IsEmpty());
  EXPECT_THAT(machine.said, ElementsAre("host memory: this system reports no NUMA nodes; buffers are ordinary memory"));
}

TEST(HostBuffer, PrefersTheNodeThatIsAskedFor) {
  FakeMachine machine;
  const HostBuffer buffer(100, {.node = 0}, machine);
  EXPECT_EQ(buffer.node(), 0);
  EXPECT_THAT(machine.preferred, ElementsAre(0));
  EXPECT_THAT(machine.said, IsEmpty());
}

TEST(HostBuffer, TakesTheNearestNodeThatHasMemoryAndSaysSoOnce) {
  FakeMachine machine;
  machine.node_list = {0, 1, 2, 3};
  machine.without_memory = {1, 3};
  machine.this_node = 3;
  const HostBuffer own(100, {}, machine);
  const HostBuffer asked(100, {.node = 1}, machine);
  EXPECT_EQ(own.node(), 2);
  EXPECT_EQ(asked.node(), 0);  // as near as 2, and before it
  EXPECT_THAT(machine.preferred, ElementsAre(2, 0));
  EXPECT_THAT(machine.said, ElementsAre("host memory: NUMA node 3 has no memory for this process; buffers are on node "
                                        "2, the nearest that has"));
}

TEST(HostBuffer, TakesTheNodeOfItsCoresWhereThatOfTheDeviceIsNotOfThisMachine) {
  FakeMachine machine;
  const HostBuffer buffer(100, {.node = 6}, machine);
  EXPECT_EQ(buffer.node(), 1);
  EXPECT_THAT(machine.said, ElementsAre("host memory: this machine has no NUMA node 6, the requested node of "
                                        "the rank's device; buffers are on node 1, of the rank's cores"));
}

TEST(HostBuffer, AsksForHugePagesFromTheSizeOfOneOn) {
  FakeMachine machine;
  const HostBuffer small(kHugePage - 1, {}, machine);
  const HostBuffer large(kHugePage, {}, machine);
  EXPECT_THAT(machine.huge_bytes, ElementsAre(kHugePage));
}

TEST(HostBuffer, IsPinnedOnlyWhenAsked) {
  FakeMachine machine;
  EXPECT_TRUE(HostBuffer(100, {.pin = true}, machine).pinned());
  EXPECT_FALSE(HostBuffer(100, {.pin = false}, machine).pinned());
}

TEST(HostBuffer, StaysPageableWherePinningIsRefusedAndSaysSoOnce) {
  FakeMachine machine;
  machine.lock_error = ENOMEM;
  const HostBuffer first(8192, {.pin = true}, machine);
  const HostBuffer second(100, {.pin = true}, machine);
  EXPECT_FALSE(first.pinned());
  EXPECT_EQ(first.node(), 1);
  EXPECT_THAT(machine.said,
              ElementsAre("host memory: pinning 8192 bytes refused (Cannot allocate memory); buffers stay "
                          "pageable; raise ulimit -l"));
}

TEST(HostBuffer, RaisesWhenTheSystemHasNoMemory) {
  FakeMachine machine;
  machine.full = true;
  EXPECT_EQ(test::message_of<DeviceError>([&] { HostBuffer(8192, {}, machine); }),
            "host buffer: the system has no 8192 bytes to give; use a smaller batch or fewer ranks on this machine");
}

TEST(HostBuffer, GivesItsMemoryBackOnceHoweverItMoves) {
  FakeMachine machine;
  {
    HostBuffer first(100, {}, machine);
    std::byte* const data = first.data();
    HostBuffer second(std::move(first));
    EXPECT_EQ(second.data(), data);
    second = HostBuffer(200, {}, machine);
    EXPECT_EQ(machine.unmapped_bytes, (std::vector<std::size_t>{100}));
    EXPECT_EQ(second.bytes(), 200u);
  }
  EXPECT_EQ(machine.mapped, 0);
  EXPECT_EQ(machine.unmapped_bytes, (std::vector<std::size_t>{100, 200}));
}

TEST(HostBuffer, OfNoBytesAsksNothing) {
  FakeMachine machine;
  const HostBuffer buffer(0, {.pin = true}, machine);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(machine.mapped, 0);
  EXPECT_THAT(machine.preferred, IsEmpty());
}

TEST(HostMemoryOfThisMachine, IsZeroedPageAlignedAndWritable) {
  const HostBuffer buffer(3 * kPage + 5, {.pin = true});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kPage, 0u);
  const auto bytes = buffer.as<std::uint8_t>();
  ASSERT_EQ(bytes.size(), 3 * kPage + 5);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == 0; }));
  std::ranges::fill(bytes, std::uint8_t{255});
  EXPECT_EQ(bytes.back(), 255);
}

TEST(HostMemoryOfThisMachine, BeginsLargeBuffersAtAHugePage) {
  const HostBuffer buffer(2 * kHugePage + 5);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kHugePage, 0u);
  buffer.data()[2 * kHugePage + 4] = std::byte{1};
  EXPECT_EQ(buffer.data()[0], std::byte{0});
}

TEST(HostMemoryOfThisMachine, SaysOnWhichNodeTouchedPagesAre) {
  const HostBuffer buffer(64 * kPage);
  if (!buffer.node()) GTEST_SKIP() << "the kernel has no NUMA";
  std::ranges::fill(buffer.as<std::uint8_t>().first(32 * kPage), std::uint8_t{1});
  const PageCount pages = count_pages(buffer.data(), buffer.bytes(), *buffer.node());
  if (pages.seen == 0) GTEST_SKIP() << "the kernel does not say where pages are";
  EXPECT_EQ(pages.seen, 64);
  if (NumaTopology::detect().nodes.size() > 1) GTEST_SKIP() << "another node may have taken some";
  EXPECT_EQ(pages.on_node, 32);  // the others were never touched
}

TEST(HostMemoryOfThisMachine, KnowsTheNodeOfThisThread) {
  const NumaTopology topology = NumaTopology::detect();
  if (!topology.available()) GTEST_SKIP() << "the kernel has no NUMA";
  ASSERT_TRUE(topology.local_node.has_value());
  EXPECT_TRUE(std::ranges::is_sorted(topology.nodes));
  EXPECT_THAT(topology.nodes, ::testing::Contains(*topology.local_node));
}

TEST(HostMemoryOfThisMachine, PlacesPagesWhereTheKernelAllowsIt) {
  HostMemoryCalls& calls = HostMemoryCalls::system();
  const auto node = calls.node_of_this_thread();
  if (!node) GTEST_SKIP() << "the kernel has no NUMA";
  void* data = calls.map(kPage);
  ASSERT_NE(data, nullptr);
  EXPECT_THAT(calls.prefer_node(data, kPage, *node), ::testing::AnyOf(0, EPERM, ENOSYS));
  EXPECT_NE(calls.prefer_node(static_cast<std::byte*>(data) + 1, kPage, *node), 0);  // not page-aligned
  calls.unmap(data, kPage);
}

}  // namespace
}  // namespace loom::offload
