// Promise: pictures are clamped as MindSpeed-MM clamps them, with a filter of the user's choice.
// World:   sizes by hand.
#include "engine/images/preclamp.h"

#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/images/pictures.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::message_of;

TEST(Preclamp, ScalesBothSidesToTheLimits) {
  // sqrt(589824 / 1500000) = 0.62707: 940.6 and 627.07
  EXPECT_EQ(preclamped_size({1500, 1000}, {}), (ImageSize{940, 627}));
  EXPECT_EQ(preclamped_size({768, 768}, {}), (ImageSize{768, 768}));
  // sqrt(1024 / 600) = 1.30639: 39.19 and 26.13; then 28
  EXPECT_EQ(preclamped_size({30, 20}, {.sides = false}), (ImageSize{39, 26}));
  EXPECT_EQ(preclamped_size({30, 20}, {}), (ImageSize{39, 28}));
}

TEST(Preclamp, MakesQwensSidesLongEnough) {
  EXPECT_EQ(preclamped_size({10, 200}, {.min_pixels = 0}), (ImageSize{28, 200}));
  EXPECT_EQ(preclamped_size({10, 200}, {.min_pixels = 0, .sides = false}), (ImageSize{10, 200}));
  EXPECT_EQ(preclamped_size({28 * 201, 28}, {}), (ImageSize{28 * 180, 28}));
  EXPECT_EQ(preclamped_size({28, 28 * 201}, {}), (ImageSize{28, 28 * 180}));
  EXPECT_EQ(preclamped_size({28 * 200, 28}, {}), (ImageSize{28 * 200, 28}));
}

TEST(Preclamp, TakesTheNearestPixelUnlessAnotherFilterIsChosen) {
  const Image image = patterned(100, 80);
  const PreclampOptions nearest{.max_pixels = 2000};
  const PreclampOptions bicubic{.max_pixels = 2000, .filter = Filter::kBicubic};
  EXPECT_EQ(preclamp(image, nearest), resize(image, 50, 40, Filter::kNearest));
  EXPECT_EQ(preclamp(image, bicubic), resize(image, 50, 40, Filter::kBicubic));
}

// 12 x 30 is below 1024 pixels: 20 x 50 by the nearest pixel, then 28 x 50 by bicubic.
TEST(Preclamp, ResizesOnceForEachRule) {
  const Image image = patterned(12, 30);
  const Image first = resize(image, 20, 50, Filter::kNearest);
  EXPECT_EQ(preclamp(image, {}), resize(first, 28, 50, Filter::kBicubic));
}

TEST(Preclamp, KeepsAPictureWithinTheLimits) { EXPECT_EQ(preclamp(patterned(50, 40), {}), patterned(50, 40)); }

TEST(Preclamp, RefusesWhatHasNoSize) {
  EXPECT_EQ(message_of<ConfigError>([] {
              preclamped_size({100000, 1}, {.max_pixels = 100, .min_pixels = 0});
            }),
            "a picture of 100000 x 1 pixels would be resized to 3162 x 0; crop the picture or leave it out");
  EXPECT_THROW(preclamped_size({0, 1}, {}), ConfigError);
  EXPECT_THROW(preclamped_size({10, 10}, {.max_pixels = 0}), ConfigError);
  EXPECT_THROW(preclamped_size({10, 10}, {.max_pixels = 10, .min_pixels = 11}), ConfigError);
}

}  // namespace
}  // namespace loom::images
