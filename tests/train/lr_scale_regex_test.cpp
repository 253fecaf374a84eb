// Promise: an item of --lr-scaling-plan is cut at its last equals sign.
// World:   items made by hand. Compiled with LOOM_TEXT, which has regular expressions.
#include <gtest/gtest.h>

#include "engine/train/parameter_rules.h"

namespace loom::train {
namespace {

TEST(LrScalingPlan, ARegexMayHaveAnEqualsSign) {
  const LrScale scale = parse_lr_scale("model\\.(embed|a=b).*=0.25");
  EXPECT_EQ(scale.pattern, "model\\.(embed|a=b).*");
  EXPECT_EQ(scale.factor, 0.25);
}

}  // namespace
}  // namespace loom::train
