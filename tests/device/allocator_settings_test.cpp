// Promise: the options of PYTORCH_ALLOC_CONF are read as PyTorch reads them, and change what the caching allocator does
//          as its published rules say: to the byte, counted by hand here. What PyTorch refuses is refused.
#include "engine/device/allocator_settings.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/caching_allocator.h"
#include "tests/device/sizes_and_streams.h"
#include "tests/support/files.h"

namespace loom::device {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr StreamId kPool = StreamId::kCompute;

AllocatorSettings read(std::string_view text) { return read_allocator_settings(text, "--alloc-conf"); }
std::string refusal(std::string_view text) {
  return test::message_of<ConfigError>([&] { read(text); });
}

class Allocator {
 public:
  Allocator(std::string_view settings, std::int64_t device) : allocator_(device, read(settings)) {}
  CachingAllocator::Piece* take(std::int64_t bytes) { return allocator_.allocate(bytes, kPool); }
  void free(CachingAllocator::Piece* piece) { allocator_.free(piece); }
  std::int64_t reserved() const { return allocator_.stats().reserved_bytes; }
  std::int64_t allocated() const { return allocator_.stats().allocated_bytes; }
  CachingAllocator* operator->() { return &allocator_; }

 private:
  CachingAllocator allocator_;
};

TEST(AllocatorOptions, AreReadAsPyTorchReadsThem) {
  const AllocatorSettings settings = read(
      "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8,pinned_num_register_threads:4,"
      "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],per_process_memory_fraction:1.0");
  EXPECT_TRUE(settings.expandable_segments);
  EXPECT_EQ(settings.max_split_bytes, 128 * kMiB);
  EXPECT_EQ(settings.garbage_collection_threshold, 0.8);
  EXPECT_TRUE(settings.collects_garbage());
  EXPECT_THAT(settings.power2_divisions, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8));
  EXPECT_THAT(read("roundup_power2_divisions:4").power2_divisions, ::testing::Each(4));
  EXPECT_EQ(read(""), AllocatorSettings{});
  EXPECT_FALSE(read("garbage_collection_threshold:0.8").collects_garbage()) << "no fraction is set";
}

TEST(AllocatorOptions, ThatPyTorchRefusesAreRefused) {
  EXPECT_EQ(refusal("expandable_segment:True"),
            "--alloc-conf: 'expandable_segment': PyTorch has no such option; the nearest is expandable_segments");
  EXPECT_EQ(refusal("expandable_segments:true"), "--alloc-conf: 'expandable_segments:true': write True or False");
  EXPECT_EQ(refusal("expandable_segments"), "--alloc-conf: 'expandable_segments': write name:value");
  EXPECT_THAT(refusal("max_split_size_mb:19"), HasSubstr("write a number of MiB from 20 on"));
  EXPECT_THAT(refusal("garbage_collection_threshold:1"), HasSubstr("write a number between 0 and 1"));
  EXPECT_THAT(refusal("roundup_power2_divisions:3"), HasSubstr("powers of two"));
  EXPECT_THAT(refusal("roundup_power2_divisions:[256:3]"), HasSubstr("powers of two"));
  EXPECT_THAT(refusal("roundup_power2_divisions:[256:2"), HasSubstr("close the list with ']'"));
}

TEST(RoundupPower2Divisions, RoundRequestsToStepsBetweenPowersOfTwo) {
  Allocator allocator("roundup_power2_divisions:4", std::int64_t{1} << 40);
  allocator.take(1200);
  EXPECT_EQ(allocator.allocated(), 1536) << "too small for four steps: a multiple of 512";
  allocator.take(33 * kMiB);
  EXPECT_EQ(allocator.allocated(), 1536 + 40 * kMiB) << "32, 40, 48, 56 or 64 MiB";
}

// --- expandable segments

TEST(ExpandableSegments, GrowByPagesAndReuseTheEndOfWhatIsMapped) {
  Allocator allocator("expandable_segments:True", std::int64_t{1} << 40);
  allocator.take(30 * kMiB);
  EXPECT_EQ(allocator.reserved(), 40 * kMiB) << "two pages of 20 MiB";
  allocator.take(25 * kMiB);
  EXPECT_EQ(allocator.reserved(), 60 * kMiB) << "the free 10 MiB and one more page";
  allocator.take(1);
  EXPECT_EQ(allocator.reserved(), 62 * kMiB) << "small pieces have pages of 2 MiB";
}

TEST(ExpandableSegments, GrowWhereFixedOnesWouldBeTooSmall) {
  for (const auto& [settings, reserved] : {std::pair{"", 200 + 220}, {"expandable_segments:True", 220}}) {
    Allocator allocator(settings, std::int64_t{1} << 40);
    allocator.free(allocator.take(200 * kMiB));
    allocator.take(220 * kMiB);
    EXPECT_EQ(allocator.reserved(), reserved * kMiB) << settings;
  }
}

TEST(ExpandableSegments, SplitOffRestsOf512Bytes) {
  Allocator allocator("expandable_segments:True", std::int64_t{1} << 40);
  allocator.take(20 * kMiB - 512);
  EXPECT_EQ(allocator.allocated(), 20 * kMiB - 512) << "elsewhere the rest of up to 1 MiB counts as allocated";
}

TEST(ExpandableSegments, GiveWholePagesBackWhenTheDeviceIsFull) {
  Allocator allocator("expandable_segments:True", 100 * kMiB);
  CachingAllocator::Piece* first = allocator.take(50 * kMiB);  // pages 0, 1 and half of 2
  allocator.take(10 * kMiB);                                   // the other half of page 2
  allocator.free(first);
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
  // 70 MiB have no room before or behind the 10 that stay: a new range needs 80. Pages 0 and 1 are given back; what is
  // free of page 2 stays.
  EXPECT_NE(allocator.take(70 * kMiB), nullptr);
  EXPECT_EQ(allocator.reserved(), 100 * kMiB);
  EXPECT_EQ(allocator->stats().cache_flushes, 1);
  EXPECT_EQ(allocator.take(40 * kMiB), nullptr);
}

TEST(ExpandableSegments, EmptyingTheCacheLeavesNothing) {
  Allocator allocator("expandable_segments:True", std::int64_t{1} << 40);
  CachingAllocator::Piece* pieces[] = {allocator.take(7 * kMiB), allocator.take(30 * kMiB), allocator.take(100)};
  for (CachingAllocator::Piece* piece : pieces) allocator.free(piece);
  EXPECT_EQ(allocator.reserved(), 42 * kMiB);
  allocator->empty_cache();
  EXPECT_EQ(allocator.reserved(), 0);
  EXPECT_EQ(allocator->stats().segments, 0);
  EXPECT_TRUE(allocator->pools().empty());
}

// --- pieces that are not split

TEST(MaxSplitSize, LargerPiecesAreNotSplit) {
  Allocator allocator("max_split_size_mb:100", std::int64_t{1} << 40);
  allocator.free(allocator.take(200 * kMiB));
  allocator.take(50 * kMiB);
  EXPECT_EQ(allocator.reserved(), 250 * kMiB) << "a small request does not take the large piece";
  allocator.take(150 * kMiB);
  EXPECT_EQ(allocator.reserved(), 400 * kMiB) << "nor does one that would waste 20 MiB or more";
  allocator.take(190 * kMiB);
  EXPECT_EQ(allocator.reserved(), 400 * kMiB);
  EXPECT_EQ(allocator.allocated(), 400 * kMiB) << "it has the whole piece";
}

TEST(MaxSplitSize, LargePiecesAreGivenBackFirstAndOnlyAsManyAsNeeded) {
  Allocator allocator("max_split_size_mb:50", 300 * kMiB);
  CachingAllocator::Piece* pieces[] = {allocator.take(60 * kMiB), allocator.take(80 * kMiB),
                                       allocator.take(100 * kMiB)};
  for (CachingAllocator::Piece* piece : pieces) allocator.free(piece);
  allocator.take(150 * kMiB);  // 100 and 80 are given back
  EXPECT_EQ(allocator.reserved(), 210 * kMiB);
  EXPECT_EQ(allocator->stats().cache_flushes, 0);
}

// --- garbage collection

TEST(GarbageCollection, GivesTheOldestFreeSegmentsBackBeforeANewOne) {
  Allocator allocator("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0", 400 * kMiB);
  CachingAllocator::Piece* old = allocator.take(100 * kMiB);
  CachingAllocator::Piece* young = allocator.take(120 * kMiB);
  allocator.free(old);
  for (int i = 0; i < 3; ++i) allocator.free(allocator.take(90 * kMiB));  // pieces of `old`: its age restarts
  allocator.free(young);
  allocator.take(110 * kMiB);  // a part of `young`; no new segment, nothing is collected
  EXPECT_EQ(allocator.reserved(), 220 * kMiB);
  allocator.take(130 * kMiB);  // above half of the device: what is free and whole is given back
  EXPECT_EQ(allocator.reserved(), 120 * kMiB + 130 * kMiB);
  EXPECT_EQ(allocator->stats().cache_flushes, 0);
}

TEST(MemoryFraction, IsWhatAProcessMayHave) {
  Allocator allocator("per_process_memory_fraction:0.5", 100 * kMiB);
  EXPECT_EQ(allocator->capacity_bytes(), 50 * kMiB);
  EXPECT_EQ(allocator.take(60 * kMiB), nullptr);
}

}  // namespace
}  // namespace loom::device
