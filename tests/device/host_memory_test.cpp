// Promise: host memory is counted by purpose while it is owned, comes from the allocator that was given, and is not
//          counted as the device's.
#include "engine/device/host_memory.h"

#include <gmock/gmock.h>

#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/device/pinned_bytes.h"

namespace loom::device {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class Requests final : public HostAllocator {
 public:
  std::shared_ptr<std::byte> allocate(std::size_t bytes, bool pinned) override {
    made.emplace_back(bytes, pinned);
    return memory_->allocate(bytes, pinned);
  }
  std::vector<std::pair<std::size_t, bool>> made;

 private:
  const std::shared_ptr<HostAllocator> memory_ = HostAllocator::ordinary();
};

TEST(HostMemory, CountsBytesAsAskedForByPurposeUntilTheBlockEnds) {
  HostMemory memory(HostAllocator::ordinary(), /*dry_run=*/false);
  const auto shard = memory.allocate(100, MemCategory::kParameter, false);
  auto gradient = memory.allocate(28, MemCategory::kGradient, false);
  EXPECT_EQ(memory.stats().by_category[MemCategory::kParameter], 100);
  EXPECT_EQ(memory.stats().total_bytes, 128);
  gradient.reset();
  EXPECT_EQ(memory.stats().total_bytes, 100);
  EXPECT_EQ(memory.stats().peak_by_category[MemCategory::kGradient], 28);
  memory.reset_peaks();
  EXPECT_EQ(memory.stats().peak_bytes, 100);
  EXPECT_EQ(memory.stats().peak_by_category[MemCategory::kGradient], 0);
}

TEST(HostMemory, AsksTheAllocatorForWhatIsAskedOfIt) {
  const auto requests = std::make_shared<Requests>();
  HostMemory memory(requests, /*dry_run=*/false);
  const auto pinned = memory.allocate(64, MemCategory::kParameter, true);
  const auto pageable = memory.allocate(0, MemCategory::kParameter, false);
  EXPECT_NE(pinned->data(), nullptr);
  EXPECT_NE(pageable->data(), nullptr);
  EXPECT_THAT(requests->made, ElementsAre(Pair(64u, true), Pair(0u, false)));
}

TEST(HostMemory, OfADryRunIsCountedAndNotTaken) {
  const auto requests = std::make_shared<Requests>();
  HostMemory memory(requests, /*dry_run=*/true);
  const auto block = memory.allocate(64, MemCategory::kOptimizerState, true);
  EXPECT_EQ(block->data(), nullptr);
  EXPECT_EQ(memory.stats().by_category[MemCategory::kOptimizerState], 64);
  EXPECT_THAT(requests->made, IsEmpty());
}

// What a pool of pinned memory has to hold is known from a dry run.
TEST(PinnedBytes, CountsBlocksAskedForAsPinnedInRunsAndDryRunsAlike) {
  for (const bool dry_run : {false, true}) {
    RankContext context(0, 1);
    const RankScope scope(context);
    HostMemory memory(HostAllocator::ordinary(), dry_run);
    PinnedBytes& pinned = context.slot<PinnedBytes>();
    auto one = memory.allocate(100, MemCategory::kParameter, true);  // 128: pieces begin at 64 bytes
    const auto none = memory.allocate(0, MemCategory::kParameter, true);
    const auto pageable = memory.allocate(1000, MemCategory::kParameter, false);
    EXPECT_EQ(pinned.now(), 128 + 64);
    EXPECT_EQ(one->data() == nullptr, dry_run);
    one.reset();
    EXPECT_EQ(pinned.now(), 64);
    EXPECT_EQ(pinned.peak(), 128 + 64);
    const auto two = memory.allocate(64, MemCategory::kGradient, true);
    EXPECT_EQ(pinned.peak(), 128 + 64);
  }
}

TEST(PinnedBytes, AreOfNoRankWhereNoneIsCurrent) {
  HostMemory memory(HostAllocator::ordinary(), /*dry_run=*/false);
  EXPECT_NE(memory.allocate(64, MemCategory::kParameter, true)->data(), nullptr);
}

TEST(HostMemory, BelongsToItsDeviceAndIsNotItsMemory) {
  const auto requests = std::make_shared<Requests>();
  RankContext context(0, 1);
  DeviceOptions options;
  options.host_allocator = requests;
  Device& device = Device::install(context, options);
  const auto block = device.host_memory().allocate(64, MemCategory::kParameter, false);
  EXPECT_EQ(requests->made.size(), 1u);
  EXPECT_EQ(device.memory().stats().total_bytes, 0);
}

}  // namespace
}  // namespace loom::device
