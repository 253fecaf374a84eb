// Promise: a recorder sees every change of the device's memory, in host order, and where the timeline then was.
#include "engine/device/memory_recorder.h"

#include <gmock/gmock.h>

#include "tests/support/one_rank.h"

namespace loom::device {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class Recorder : public ::testing::Test {
 protected:
  std::shared_ptr<Block> take(std::int64_t bytes) {
    return device().memory().allocate(bytes, MemCategory::kActivation, "test");
  }
  Device& device() { return rank_.device(); }

 private:
  test::OneRank rank_;
};

TEST_F(Recorder, SeesAllocationsAndTheirEnds) {
  device().timeline().enable(true);
  auto before = take(1024);
  MemoryRecorder recorder(device());
  device().launch("first", {}, [] {});
  const auto during = take(600);
  device().launch("second", {}, [] {});
  before.reset();
  during->recategorize(MemCategory::kGradient);

  const auto each = [samples = recorder.take()](auto value) {
    std::vector<std::int64_t> values;
    for (const MemorySample& sample : samples) values.push_back(value(sample));
    return values;
  };
  const auto of = [](MemCategory category) {
    return [category](const MemorySample& sample) { return sample.by_category[static_cast<std::size_t>(category)]; };
  };
  // The last two: out of one category, into the other.
  EXPECT_THAT(each([](const MemorySample& sample) { return sample.entries; }), ElementsAre(0, 1, 2, 2, 2));
  EXPECT_THAT(each(of(MemCategory::kActivation)), ElementsAre(1024, 2048, 1024, 0, 0));
  EXPECT_THAT(each(of(MemCategory::kGradient)), ElementsAre(0, 0, 0, 0, 1024));
  EXPECT_THAT(each([](const MemorySample& sample) { return sample.allocated_bytes; }),
              ElementsAre(1024, 2048, 1024, 1024, 1024));
  EXPECT_THAT(each([](const MemorySample& sample) { return sample.reserved_bytes; }),
              ElementsAre(2 << 20, 2 << 20, 2 << 20, 2 << 20, 2 << 20));
}

TEST_F(Recorder, LeavesTheDeviceAloneWhenItIsGone) {
  { const MemoryRecorder recorder(device()); }
  const auto later = take(512);
  MemoryRecorder next(device());
  EXPECT_THAT(next.take(), SizeIs(1));
}

}  // namespace
}  // namespace loom::device
