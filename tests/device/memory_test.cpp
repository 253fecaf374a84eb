// Promise: the accounts say, in host order and whatever runs behind, how many bytes each category holds and held at
//          most.
#include "engine/device/memory.h"

#include <cstring>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/device/sizes_and_streams.h"
#include "tests/support/one_rank.h"

namespace loom::device {
namespace {

constexpr MemCategory kShard{0, "shard", LifeClass::kStatic};
constexpr MemCategory kGatherBuffer{1, "gather_buffer", LifeClass::kCommunication};

using test::shared_arena;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(DeviceMemory, CountsEachBlockRoundedUpTo512Bytes) {
  DeviceMemory memory(64 * kMiB, shared_arena(), false);
  const auto one = memory.allocate(1, kShard, "one");
  const auto more = memory.allocate(513, MemCategory::kActivation, "more");
  const auto exact = memory.allocate(512, MemCategory::kActivation, "exact");
  const auto none = memory.allocate(0, MemCategory::kGradient, "none");
  EXPECT_EQ(memory.stats().by_category[kShard], 512);
  EXPECT_EQ(memory.stats().by_category[MemCategory::kActivation], 1024 + 512);
  EXPECT_EQ(memory.stats().by_category[MemCategory::kGradient], 0);
  EXPECT_EQ(memory.stats().total_bytes, 512 + 1024 + 512);
  EXPECT_EQ(more->bytes(), 513);
}

TEST(DeviceMemory, KeepsThePeakAndWhatItWasMadeOf) {
  DeviceMemory memory(64 * kMiB, shared_arena(), false);
  const auto shard = memory.allocate(1024, kShard, "shard");
  auto early = memory.allocate(4096, MemCategory::kActivation, "early");  // peak: 1024 + 4096
  early.reset();
  const auto late = memory.allocate(2048, MemCategory::kGradient, "late");
  const MemStats stats = memory.stats();
  EXPECT_EQ(stats.total_bytes, 1024 + 2048);
  EXPECT_EQ(stats.peak_bytes, 1024 + 4096);
  EXPECT_EQ(stats.by_category_at_peak[MemCategory::kActivation], 4096);
  EXPECT_EQ(stats.by_category_at_peak[MemCategory::kGradient], 0);
  EXPECT_EQ(stats.peak_by_category[MemCategory::kGradient], 2048);
  EXPECT_EQ(stats.peak_by_category[MemCategory::kActivation], 4096);
}

TEST(DeviceMemory, PeaksRestartFromThePresentValues) {
  DeviceMemory memory(64 * kMiB, shared_arena(), false);
  const auto kept = memory.allocate(1024, kShard, "kept");
  memory.allocate(8192, MemCategory::kTemporary, "gone").reset();
  memory.reset_peaks();
  EXPECT_EQ(memory.stats().peak_bytes, 1024);
  EXPECT_EQ(memory.stats().peak_by_category[MemCategory::kTemporary], 0);
  EXPECT_EQ(memory.stats().by_category_at_peak[kShard], 1024);
}

TEST(DeviceMemory, RecategorizingMovesBytesAndChangesNoTotal) {
  DeviceMemory memory(64 * kMiB, shared_arena(), false);
  auto block = memory.allocate(1000, MemCategory::kActivation, "block");
  block->recategorize(MemCategory::kGradient);
  EXPECT_EQ(block->category(), MemCategory::kGradient);
  EXPECT_EQ(memory.stats().by_category[MemCategory::kActivation], 0);
  EXPECT_EQ(memory.stats().by_category[MemCategory::kGradient], 1024);
  EXPECT_EQ(memory.stats().peak_bytes, 1024);
  block.reset();
  EXPECT_EQ(memory.stats().total_bytes, 0);
  EXPECT_EQ(memory.stats().by_category[MemCategory::kGradient], 0);
}

TEST(DeviceMemory, SaysWhatFillsItWhenItIsFullAndChangesNothing) {
  DeviceMemory memory(24 * kMiB, shared_arena(), false);
  const auto unsharded = memory.allocate(12 * kMiB, MemCategory::kParameter, "unsharded");
  const auto activation = memory.allocate(kMiB / 2, MemCategory::kActivation, "activation");
  EXPECT_THAT([&] { memory.allocate(11 * kMiB, kGatherBuffer, "gather of 'layers.3'"); },
              ThrowsMessage<OutOfMemoryError>(
                  StrEq("gather of 'layers.3' needs 11.0 MiB, the device has 10.0 of 24.0 MiB free; in use:\n"
                        "  unsharded               12.0 MiB\n"
                        "  activation               0.5 MiB\n"
                        "  reserved                14.0 MiB")));
  EXPECT_EQ(memory.stats().total_bytes, 12 * kMiB + kMiB / 2);
  EXPECT_EQ(memory.stats().peak_bytes, 12 * kMiB + kMiB / 2);
  EXPECT_NO_THROW(memory.allocate(10 * kMiB, kGatherBuffer, "what fits exactly"));
}

TEST(DeviceMemory, PoolScopesChooseThePoolAndNest) {
  DeviceMemory memory(64 * kMiB, shared_arena(), true);
  {
    const PoolScope gather(memory, kGatherCopyInStream);
    memory.allocate(12 * kMiB, kGatherBuffer, "gather").reset();
    const PoolScope compute(memory, StreamId::kCompute);
    memory.allocate(12 * kMiB, MemCategory::kParameter, "cannot reuse another stream's memory").reset();
  }
  EXPECT_EQ(memory.current_pool(), StreamId::kCompute);
  EXPECT_EQ(memory.stats().allocator.reserved_bytes, 24 * kMiB);
  memory.allocate(12 * kMiB, MemCategory::kParameter, "reuses its own stream's").reset();
  EXPECT_EQ(memory.stats().allocator.reserved_bytes, 24 * kMiB);
}

TEST(DeviceMemory, HasNoBytesInADryRunAndTheSameAccounts) {
  DeviceMemory memory(std::int64_t{1} << 50, shared_arena(), true);
  const auto block = memory.allocate(std::int64_t{1} << 40, MemCategory::kParameter, "a terabyte");
  EXPECT_EQ(block->data(), nullptr);
  EXPECT_EQ(memory.stats().total_bytes, std::int64_t{1} << 40);
}

TEST(DeviceMemory, CountsAdoptedMemoryAsItsOwn) {
  DeviceMemory memory(64 * kMiB, shared_arena(), false);
  const auto bytes = shared_arena()->take(2048);
  auto block = memory.adopt(bytes, 2048, kGatherBuffer, "a shared segment");
  EXPECT_EQ(block->data(), bytes.get());
  EXPECT_EQ(memory.stats().by_category[kGatherBuffer], 2048);
  block.reset();
  EXPECT_EQ(memory.stats().total_bytes, 0);
}

TEST(DeviceMemory, MemoryOutlivesItsAccountWhileAnItemKeepsIt) {
  DeviceMemory memory(64 * kMiB, shared_arena(), false);
  auto block = memory.allocate(4096, MemCategory::kActivation, "block");
  std::byte* bytes = block->data();
  const std::shared_ptr<void> kept = block->keep_alive();
  block.reset();
  EXPECT_EQ(memory.stats().total_bytes, 0);
  const auto next = memory.allocate(4096, MemCategory::kActivation, "next");
  EXPECT_NE(next->data(), bytes);
  std::memset(bytes, 1, 4096);  // still ours: the address sanitizer agrees
}

TEST(DeviceMemory, BlocksOutliveTheDeviceMemory) {
  std::shared_ptr<Block> block;
  {
    DeviceMemory memory(64 * kMiB, shared_arena(), false);
    block = memory.allocate(64, kShard, "block");
  }
  std::memset(block->data(), 1, 64);
}

TEST(DeviceMemory, NamesItsCategoriesAsTheMetricsDo) {
  EXPECT_EQ(MemCategory::kOptimizerState.name(), "optimizer_state");
  EXPECT_EQ(MemCategory::kTemporary.name(), "temporary");
}

}  // namespace
}  // namespace loom::device
