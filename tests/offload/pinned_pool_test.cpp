// Promise: a rank's pinned memory is one piece as large as its plan says; of it as much is locked as the rank's equal
//          part of the process's limit allows, and what is not locked is said once, with both numbers.
// World:   a machine of two nodes made of fakes; this machine through the kernel, with a limit of its own.
#include "offload/pinned_pool.h"

#include <unistd.h>

#include <cerrno>
#include <gmock/gmock.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>

#include "offload/host_allocator.h"
#include "tests/offload/fake_machine.h"

namespace loom::offload {
namespace {

using test::FakeMachine;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<PinnedPool> pool_of(FakeMachine& machine, std::size_t bytes, int ranks = 1,
                                    std::optional<int> node = {}) {
  return std::make_shared<PinnedPool>(bytes, node, ranks, machine);
}

TEST(PinnedPool, IsLockedWholeWhereNoLimitHolds) {
  FakeMachine machine;
  const auto pool = pool_of(machine, 5 * kPage);
  EXPECT_EQ(pool->pinned_bytes(), 5 * kPage);
  EXPECT_THAT(machine.locked_bytes, ElementsAre(5 * kPage));
  EXPECT_THAT(machine.said, IsEmpty());
}

TEST(PinnedPool, IsWholePagesOnTheNodeAskedFor) {
  FakeMachine machine;
  machine.node_of_pages = 0;
  const auto pool = pool_of(machine, kPage + 1, 1, 0);
  EXPECT_EQ(pool->bytes(), 2 * kPage);
  EXPECT_EQ(pool->node(), 0);
  EXPECT_EQ(machine.pages_seen, 2);
  EXPECT_THAT(machine.said, IsEmpty());
}

TEST(PinnedPool, LocksItsPartOfTheLimitAndSaysOnceWhatItDoesNotLock) {
  FakeMachine machine;
  machine.limit = 8 * kPage + 100;
  const auto first = pool_of(machine, 5 * kPage, 2);
  const auto second = pool_of(machine, 5 * kPage, 2);
  EXPECT_EQ(first->pinned_bytes(), 4 * kPage);
  EXPECT_EQ(second->pinned_bytes(), 4 * kPage);  // whoever comes first, both the same
  EXPECT_THAT(machine.locked_bytes, ElementsAre(4 * kPage, 4 * kPage));
  EXPECT_THAT(machine.said,
              ElementsAre("host memory: pinned 16384 of the 20480 bytes requested by a rank: this process may lock "
                          "32868 bytes (ulimit -l 32, shared by 2 ranks); the rest is pageable; raise ulimit -l"));
}

TEST(PinnedPool, WorksWhereNothingMayBeLocked) {
  FakeMachine machine;
  machine.limit = 0;
  const auto pool = pool_of(machine, kPage);
  EXPECT_EQ(pool->pinned_bytes(), 0u);
  EXPECT_THAT(machine.locked_bytes, IsEmpty());
  const auto piece = pool->take(kPage);
  piece.get()[kPage - 1] = std::byte{7};
  EXPECT_THAT(machine.said,
              ElementsAre("host memory: pinned 0 of the 4096 bytes requested by a rank: this process may lock 0 bytes "
                          "(ulimit -l 0); the rest is pageable; raise ulimit -l"));
}

TEST(PinnedPool, WorksWhereLockingIsRefusedAllTheSame) {
  FakeMachine machine;
  machine.lock_error = EPERM;
  const auto pool = pool_of(machine, kPage);
  EXPECT_EQ(pool->pinned_bytes(), 0u);
  EXPECT_NE(pool->take(100), nullptr);
  EXPECT_THAT(machine.said, ElementsAre("host memory: pinning 4096 bytes refused (Operation not permitted); they stay "
                                        "pageable; raise ulimit -l"));
}

TEST(PinnedPool, SaysOnceThatItsPagesAreElsewhere) {
  FakeMachine machine;
  machine.node_of_pages = 0;
  pool_of(machine, 100 * kPage);
  pool_of(machine, 100 * kPage);
  EXPECT_THAT(machine.said, ElementsAre("host memory: of 100 pages looked at, 0 are on NUMA node 1, which has 12345 "
                                        "bytes free; the others are farther from the rank's cores"));
}

TEST(PinnedPool, GivesTheLowestPlaceAndJoinsWhatComesBack) {
  FakeMachine machine;
  const auto pool = pool_of(machine, kPage);
  auto first = pool->take(1);
  auto second = pool->take(64);
  auto third = pool->take(kPage - 128);
  EXPECT_EQ(second.get() - first.get(), 64);
  EXPECT_EQ(third.get() - first.get(), 128);
  EXPECT_EQ(pool->take(1), nullptr);  // full
  const std::byte* const begin = first.get();
  first.reset();
  std::thread([piece = std::move(third)]() mutable { piece.reset(); }).join();  // pieces may end anywhere
  EXPECT_EQ(pool->take(kPage), nullptr);
  second.reset();  // between two free places: all three are one
  EXPECT_EQ(pool->take(kPage).get(), begin);
}

TEST(PinnedPool, LivesAsLongAsItsLastPiece) {
  FakeMachine machine;
  auto pool = pool_of(machine, kPage);
  auto piece = pool->take(100);
  pool.reset();
  EXPECT_EQ(machine.mapped, 1);
  piece.reset();
  EXPECT_EQ(machine.mapped, 0);
}

// --- behind the allocator

TEST(AllocatorWithAPool, TakesPinnedPiecesFromItAndNothingElse) {
  FakeMachine machine;
  const auto allocator = make_host_allocator({.pinned_pool_bytes = 2 * kPage}, machine);
  EXPECT_EQ(machine.mapped, 0);  // nothing before it is asked
  const auto one = allocator->allocate(kPage, true);
  const auto two = allocator->allocate(kPage, true);
  EXPECT_EQ(machine.mapped, 1);
  const auto pageable = allocator->allocate(kPage, false);
  EXPECT_EQ(machine.mapped, 2);
  const auto beyond = allocator->allocate(kPage, true);
  EXPECT_EQ(machine.mapped, 3);
  EXPECT_THAT(machine.locked_bytes, ElementsAre(2 * kPage, kPage));
}

TEST(AllocatorWithAPool, PinsBeyondItOnlyWhileItsPartOfTheLimitLasts) {
  FakeMachine machine;
  machine.limit = 3 * kPage;
  const auto allocator = make_host_allocator({.pinned_pool_bytes = 2 * kPage}, machine);
  const auto pool = allocator->allocate(2 * kPage, true);
  const auto within = allocator->allocate(kPage, true);
  EXPECT_THAT(machine.said, IsEmpty());
  const auto beyond = allocator->allocate(kPage, true);
  EXPECT_THAT(machine.locked_bytes, ElementsAre(2 * kPage, kPage));
  EXPECT_THAT(machine.said,
              ElementsAre("host memory: pinned 12288 of the 16384 bytes requested by a rank: this process may lock "
                          "12288 bytes (ulimit -l 12); the rest is pageable; raise ulimit -l"));
}

TEST(AllocatorWithAPool, PutsItOnTheNodeOfTheDevice) {
  FakeMachine machine;
  machine.node_of_pages = 0;
  const auto allocator = make_host_allocator({.pinned_pool_bytes = kPage, .node = 0}, machine);
  const auto pinned = allocator->allocate(1, true);
  const auto pageable = allocator->allocate(1, false);
  EXPECT_THAT(machine.preferred, ElementsAre(0, 0));
}

// In a process of its own, which gives up the right to lock all.
int with_limit_of_this_machine(std::size_t limit_bytes) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  syscall(SYS_capget, &header, data);
  data[0].effective &= ~(1U << CAP_IPC_LOCK);
  if (syscall(SYS_capset, &header, data) != 0) return 10;
  const rlimit limit{limit_bytes, limit_bytes};
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 11;
  HostMemoryCalls& calls = HostMemoryCalls::system();
  if (calls.lock_limit() != limit_bytes) return 12;
  const auto pool = std::make_shared<PinnedPool>(16 * kPage, std::nullopt, 2, calls);
  if (pool->pinned_bytes() != 4 * kPage) return 13;
  pool->take(16 * kPage).get()[16 * kPage - 1] = std::byte{7};
  const HostBuffer refused(64 * kPage, {.pin = true}, calls);  // above the limit: the kernel refuses
  return refused.pinned() ? 14 : 0;
}

TEST(PinnedPoolOfThisMachine, LocksWhatTheLimitAllows) {
#ifdef LOOM_SANITIZED
  GTEST_SKIP() << "a sanitizer's runtime grants every mlock itself";
#endif
  const pid_t child = fork();
  if (child == 0) _exit(with_limit_of_this_machine(8 * kPage));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace loom::offload
