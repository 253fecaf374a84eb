// Promise: a box of a row-major array is walked in its own order, in runs as long as they can be.
#include "engine/core/box.h"

#include <gmock/gmock.h>
#include <numeric>

#include "engine/core/error.h"

namespace loom {
namespace {

using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

// The indices in the whole of the box's elements, in the box's order.
std::vector<std::int64_t> elements(const BoxRuns& runs) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    for (std::int64_t e = 0; e < runs.elems(); ++e) found.push_back(runs.begin(i) + e);
  }
  return found;
}

TEST(BoxRuns, RowsAreOneRun) {
  const BoxRuns runs({4, 3, 2}, {1, 0, 0}, {2, 3, 2});
  EXPECT_EQ(runs.count(), 1);
  EXPECT_EQ(runs.elems(), 12);
  EXPECT_EQ(runs.begin(0), 6);
}

TEST(BoxRuns, ColumnsAreOneRunARow) {
  const BoxRuns runs({3, 4}, {0, 1}, {3, 2});
  EXPECT_EQ(runs.count(), 3);
  EXPECT_THAT(elements(runs), ElementsAre(1, 2, 5, 6, 9, 10));
}

TEST(BoxRuns, DimsThatAreTakenWholeLengthenTheRuns) {
  const BoxRuns runs({2, 3, 4}, {0, 1, 0}, {2, 2, 4});
  EXPECT_EQ(runs.count(), 2);
  EXPECT_EQ(runs.elems(), 8);
  EXPECT_THAT(runs.begin(1), 12 + 4);
}

TEST(BoxRuns, CutOnEveryDim) {
  EXPECT_THAT(elements({{3, 3, 3}, {1, 0, 1}, {2, 2, 2}}), ElementsAre(10, 11, 13, 14, 19, 20, 22, 23));
}

TEST(BoxRuns, OfTheWholeAreItsElementsInOrder) {
  std::vector<std::int64_t> all(24);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(elements({{2, 3, 4}, {0, 0, 0}, {2, 3, 4}}), all);
}

TEST(BoxRuns, AnEmptyBoxHasNoneAndAScalarOne) {
  EXPECT_EQ(BoxRuns({4, 3}, {4, 0}, {0, 3}).count(), 0);
  EXPECT_EQ(BoxRuns({4, 3}, {1, 3}, {2, 0}).count(), 0);
  EXPECT_EQ(BoxRuns({0, 3}, {0, 0}, {0, 3}).count(), 0);
  EXPECT_THAT(elements({{}, {}, {}}), ElementsAre(0));
}

TEST(BoxRuns, RefuseABoxThatLeavesTheArray) {
  EXPECT_THAT(
      [] {
        BoxRuns({4, 3}, {2, 1}, {3, 2});
      },
      ThrowsMessage<InvariantError>(StrEq("internal: a box [3, 2] at (2, 1) of an array [4, 3]")));
  EXPECT_THROW(BoxRuns({4, 3}, {0, 2}, {4, 2}), InvariantError);
  EXPECT_THROW(BoxRuns({4, 3}, {-1, 0}, {2, 3}), InvariantError);
  EXPECT_THROW(BoxRuns({4, 3}, {5, 0}, {0, 3}), InvariantError);
  EXPECT_THROW(BoxRuns({4, 3}, {0}, {4}), InvariantError);
}

}  // namespace
}  // namespace loom
