// Promise: an offloading rank's host memory lies on its node and is locked iff asked; what comes and goes is mapped and
//          locked once.
// World:   a machine of two nodes made of fakes.
#include "offload/host_allocator.h"

#include <cerrno>
#include <gmock/gmock.h>
#include <thread>

#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "tests/offload/fake_machine.h"

namespace loom::offload {
namespace {

using test::FakeMachine;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(HostAllocator, PlacesOnTheNodeOfTheThreadThatAsks) {
  FakeMachine machine;
  const auto allocator = make_host_allocator(machine);
  const auto piece = allocator->allocate(100, /*pinned=*/false);
  EXPECT_THAT(machine.preferred, ElementsAre(1));
  EXPECT_EQ(piece.get()[99], std::byte{0});
}

TEST(HostAllocator, PinsIffAsked) {
  FakeMachine machine;
  const auto allocator = make_host_allocator(machine);
  const auto pageable = allocator->allocate(100, false);
  EXPECT_THAT(machine.locked_bytes, IsEmpty());
  const auto pinned = allocator->allocate(200, true);
  EXPECT_THAT(machine.locked_bytes, ElementsAre(200u));
}

TEST(HostAllocator, GivesAPieceOutAgainForTheSameSizeAndPinning) {
  FakeMachine machine;
  const auto allocator = make_host_allocator(machine);
  auto piece = allocator->allocate(100, true);
  const std::byte* const first = piece.get();
  std::thread([piece = std::move(piece)]() mutable { piece.reset(); }).join();  // pieces may end anywhere
  const auto again = allocator->allocate(100, true);
  EXPECT_EQ(again.get(), first);
  EXPECT_EQ(machine.mapped, 1);
  EXPECT_THAT(machine.locked_bytes, SizeIs(1));
  const auto both_in_use = allocator->allocate(100, true);
  EXPECT_NE(both_in_use.get(), first);
  const auto pageable = allocator->allocate(100, false);
  const auto larger = allocator->allocate(101, true);
  EXPECT_EQ(machine.mapped, 4);
}

TEST(HostAllocator, GivesEverythingBackWithItsLastPiece) {
  FakeMachine machine;
  auto allocator = make_host_allocator(machine);
  auto kept = allocator->allocate(100, false);
  allocator->allocate(200, false).reset();
  allocator.reset();
  EXPECT_EQ(machine.mapped, 2);
  kept.reset();
  EXPECT_EQ(machine.mapped, 0);
}

TEST(HostAllocator, GivesAPieceOfNoBytesToo) {
  FakeMachine machine;
  EXPECT_NE(make_host_allocator(machine)->allocate(0, true), nullptr);  // the shard of a rank that owns no rows
}

TEST(HostAllocator, WorksWherePlacementAndPinningAreRefusedAndSaysSoOnce) {
  FakeMachine machine;
  machine.placement_error = EPERM;
  machine.lock_error = ENOMEM;
  RankContext context(0, 1);
  const RankScope scope(context);
  device::DeviceOptions options;
  options.host_allocator = make_host_allocator(machine);
  device::Device& device = device::Device::install(context, options);
  const auto one = device.host_memory().allocate(100, device::MemCategory::kParameter, true);
  const auto two = device.host_memory().allocate(200, device::MemCategory::kParameter, true);
  two->data()[199] = std::byte{7};
  EXPECT_THAT(machine.said, SizeIs(2));  // one a concern
}

}  // namespace
}  // namespace loom::offload
