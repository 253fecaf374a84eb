// Promise: a rank has one device, found from any thread that works for it; a dry run skips arithmetic and nothing else.
#include "engine/device/device.h"

#include <gmock/gmock.h>
#include <stdexcept>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "tests/device/sizes_and_streams.h"
#include "tests/support/one_rank.h"

namespace loom::device {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(Device, BelongsToTheRankThatIsCurrent) {
  test::OneRank outer;
  EXPECT_EQ(&Device::current(), &outer.device());
  {
    test::OneRank inner;
    EXPECT_EQ(&Device::current(), &inner.device());
  }
  EXPECT_EQ(&Device::current(), &outer.device());
}

TEST(Device, SaysWhatToDoWhenNoneIsInstalled) {
  RankContext context(2, 4);
  const RankScope scope(context);
  EXPECT_THAT([] { Device::current(); },
              ThrowsMessage<InvariantError>(
                  StrEq("[rank 2] internal: no device is installed for this rank; call Device::install first")));
}

TEST(Device, ADryRunAccountsAndRecordsButDoesNotCompute) {
  test::OneRank rank({.dry_run = true});
  const Recorder recorder(rank.device());
  bool ran = false;
  rank.device().launch("linear", {}, [&] { ran = true; });
  EXPECT_FALSE(ran);
  EXPECT_EQ(recorder.recording().entries.size(), 1u);
}

TEST(Device, SynchronizeSurfacesTheCauseOfAnyStream) {
  test::OneRank rank({.executor = ExecutorKind::kThreaded});
  rank.device().stream(kReduceScatterStream).submit({"reduce_scatter", "", {}, [] {
                                                       throw std::runtime_error("link down");
                                                     }});
  EXPECT_THAT([&] { rank.device().synchronize(); }, ThrowsMessage<std::runtime_error>(StrEq("link down")));
}

TEST(Device, OutOfMemoryNamesTheRank) {
  test::OneRank rank({.profile = {.name = "tiny", .memory_bytes = 1 << 20}});
  EXPECT_THAT([&] { rank.device().memory().allocate(2 << 20, MemCategory::kActivation, "tensor"); },
              ThrowsMessage<OutOfMemoryError>(
                  StrEq("[rank 0] tensor needs 2.0 MiB, the device has 1.0 of 1.0 MiB free; in use: nothing")));
}

}  // namespace
}  // namespace loom::device
