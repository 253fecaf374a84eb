// Promise: a Shape counts elements row-major; a scalar has no dims and one element.
#include "engine/core/shape.h"

#include <gtest/gtest.h>

namespace loom {
namespace {

TEST(Shape, CountsElementsAndRowElements) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.ndim(), 3);
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(shape.row_elems(), 12);
  EXPECT_EQ(to_string(shape), "[2, 3, 4]");
}

TEST(Shape, NegativeDimsCountFromTheEnd) {
  Shape shape{2, 3, 4};
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[-3], 2);
  shape[-2] = 5;
  EXPECT_EQ(shape, (Shape{2, 5, 4}));
}

TEST(Shape, OfAScalarHasOneElement) {
  EXPECT_EQ(Shape{}.ndim(), 0);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(Shape{}.row_elems(), 1);
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Shape, WithAnEmptyDimHasNoElementsButRows) {
  EXPECT_EQ((Shape{0, 5}).numel(), 0);
  EXPECT_EQ((Shape{0, 5}).row_elems(), 5);
  EXPECT_EQ((Shape{7}).row_elems(), 1);
}

TEST(Shape, EqualMeansSameDims) {
  EXPECT_EQ((Shape{2, 3}), Shape(std::vector<std::int64_t>{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{1}), Shape{});
}

}  // namespace
}  // namespace loom
