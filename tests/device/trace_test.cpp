// Promise: the trace is what the host issued, in its order, the same under both executors.
#include "engine/device/trace.h"

#include <gmock/gmock.h>

#include "tests/support/one_rank.h"

namespace loom::device {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> traced(ExecutorKind executor) {
  test::OneRank rank({.executor = executor});
  Device& device = rank.device();
  device.trace().enable(true);
  device.stream(StreamId::kGather).submit({"all_gather", "layers.0", {0, 1, 2, 3}, [] {}});
  device.launch("linear", {8, 4, 2}, [] {});
  device.trace().mark({.name = "W", .subject = "layers.0"});
  device.stream(StreamId::kReduceScatter).submit({"reduce_scatter", "layers.0", {}, [] {}});
  device.synchronize();
  std::vector<std::string> found;
  for (const TraceEntry& e : device.trace().entries()) found.push_back(e.stream + "/" + e.name + "/" + e.subject);
  return found;
}

TEST(Trace, HoldsItemsAndMarksInHostOrder) {
  for (ExecutorKind executor : {ExecutorKind::kInline, ExecutorKind::kThreaded}) {
    EXPECT_THAT(traced(executor), ElementsAre("gather/all_gather/layers.0", "compute/linear/", "/W/layers.0",
                                              "reduce_scatter/reduce_scatter/layers.0"));
  }
}

TEST(Trace, KeepsTheCostOfAnItem) {
  test::OneRank rank;
  rank.device().trace().enable(true);
  rank.device().launch("linear", {8, 4, 2}, [] {});
  const TraceEntry& entry = rank.device().trace().entries().at(0);
  EXPECT_EQ(entry.cost.flops, 8);
  EXPECT_EQ(entry.cost.read_bytes, 4);
  EXPECT_EQ(entry.cost.written_bytes, 2);
}

TEST(Trace, StoresNothingWhileItIsOff) {
  test::OneRank rank;
  rank.device().launch("linear", {}, [] {});
  rank.device().stream(StreamId::kH2D).submit({"copy", "", {}, [] {}});
  rank.device().trace().mark({.name = "AG"});
  EXPECT_TRUE(rank.device().trace().entries().empty());
}

}  // namespace
}  // namespace loom::device
