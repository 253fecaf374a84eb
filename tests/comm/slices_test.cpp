// Promise: an all-reduce's chunks cover its elements once, in member order, on whole cache lines.

#include "engine/comm/slices.h"

#include <gtest/gtest.h>

namespace loom::comm {
namespace {

TEST(Chunks, CoverEveryElementOnceInMemberOrder) {
  for (const int size : {1, 2, 3, 7, 16}) {
    for (const std::int64_t elems : {0, 1, 63, 64, 65, 1000, 123457}) {
      std::int64_t end = 0;
      for (int member = 0; member < size; ++member) {
        const Slice chunk = slice_of(elems, size, member);
        EXPECT_EQ(chunk.begin, end);
        EXPECT_GE(chunk.elems, 0);
        end += chunk.elems;
      }
      EXPECT_EQ(end, elems) << size << " members";
    }
  }
}

TEST(Chunks, StartOnWholeLinesOf64Elements) {
  // 1000 elements over 3 members: ceil(1000 / 3) = 334, up to 384 = 6 lines; 384 + 384 + 232.
  EXPECT_EQ(slice_of(1000, 3, 1).begin, 384);
  EXPECT_EQ(slice_of(1000, 3, 2).begin, 768);
  EXPECT_EQ(slice_of(1000, 3, 2).elems, 232);
}

TEST(Chunks, LeaveTrailingMembersEmptyWhenThereAreFewElements) {
  EXPECT_EQ(slice_of(65, 4, 0).elems, 64);
  EXPECT_EQ(slice_of(65, 4, 1).elems, 1);
  EXPECT_EQ(slice_of(65, 4, 2).elems, 0);
  EXPECT_EQ(slice_of(65, 4, 3).elems, 0);
}

}  // namespace
}  // namespace loom::comm
