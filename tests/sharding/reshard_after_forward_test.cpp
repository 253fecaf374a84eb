// Promise: reshard_after_forward is one value from the file to the group; on N ranks 1 is false and N is true.
#include "sharding/reshard_after_forward.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"

namespace loom::sharding {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(ReshardAfterForwardValue, IsWrittenAsInTheFile) {
  EXPECT_EQ(ReshardAfterForward(true).text(), "true");
  EXPECT_EQ(ReshardAfterForward(false).text(), "false");
  EXPECT_EQ(ReshardAfterForward(2).text(), "2");
  EXPECT_EQ(ReshardAfterForward(true), ReshardAfterForward::always());
  EXPECT_EQ(ReshardAfterForward(false), ReshardAfterForward::never());
  EXPECT_EQ(ReshardAfterForward(2), ReshardAfterForward::to(2));
}

TEST(ReshardAfterForwardValue, FreesUnlessItIsNever) {
  EXPECT_TRUE(ReshardAfterForward::always().frees());
  EXPECT_TRUE(ReshardAfterForward::to(2).frees());
  EXPECT_FALSE(ReshardAfterForward::never().frees());
  EXPECT_EQ(ReshardAfterForward::to(2).ranks(), 2);
  EXPECT_EQ(ReshardAfterForward::always().ranks(), std::nullopt);
  EXPECT_EQ(ReshardAfterForward::never().ranks(), std::nullopt);
}

TEST(ReshardAfterForwardValue, OnAShardGroupOneIsNeverAndAllIsAlways) {
  for (const int n : {1, 4, 8}) {
    EXPECT_EQ(ReshardAfterForward::always().on(n), ReshardAfterForward::always()) << n;
    EXPECT_EQ(ReshardAfterForward::never().on(n), ReshardAfterForward::never()) << n;
    EXPECT_EQ(ReshardAfterForward::to(1).on(n), ReshardAfterForward::never()) << n;
  }
  EXPECT_EQ(ReshardAfterForward::to(4).on(4), ReshardAfterForward::always());
  EXPECT_EQ(ReshardAfterForward::to(2).on(4), ReshardAfterForward::to(2));
  for (const int k : {3, 5, 8}) EXPECT_EQ(ReshardAfterForward::to(k).on(4), std::nullopt) << k;
}

TEST(ReshardAfterForwardValue, ANumberBelowOneIsRefused) {
  for (const int k : {0, -2}) {
    EXPECT_THAT([&] { ReshardAfterForward::to(k); },
                ThrowsMessage<ConfigError>(StrEq(fmt::format(
                    "reshard_after_forward is {}; use true, false or a number of ranks of at least 1", k))));
  }
}

}  // namespace
}  // namespace loom::sharding
