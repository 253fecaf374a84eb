// Promise: resizing gives Pillow's bytes; cutting and padding move pixels and change none.
// World:   small patterned pictures; the bytes were made by Pillow 13.0.0 from the same formula.
#include "engine/images/resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/images/pictures.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::message_of;
using ::testing::Each;

struct Golden {
  std::int64_t from_width;
  std::int64_t from_height;
  std::int64_t width;
  std::int64_t height;
  Filter filter;
  std::vector<std::uint8_t> rgb;
};

const Golden kGoldens[] = {
    {7, 5, 4, 3, Filter::kNearest, {0,  255, 1,   182, 255, 86, 108, 255, 171, 34,  0, 0,  138, 255, 1,   76, 255, 86,
                                    14, 255, 171, 208, 0,   0,  20,  0,   1,   226, 0, 86, 176, 0,   171, 75, 255, 0}},
    {7, 5, 4, 3, Filter::kBilinear, {136, 255, 23, 156, 255, 89, 91,  204, 167, 92,  12,  99,
                                     122, 198, 23, 90,  198, 89, 102, 170, 167, 184, 63,  99,
                                     101, 0,   23, 167, 0,   89, 192, 51,  167, 118, 243, 99}},
    {7, 5, 4, 3, Filter::kBicubic, {138, 255, 18, 164, 255, 89, 82,  217, 177, 90,  0,   98,
                                    124, 202, 18, 77,  202, 89, 96,  177, 177, 198, 53,  98,
                                    93,  0,   18, 174, 0,   89, 203, 38,  177, 111, 255, 98}},
    {3, 2, 5, 4, Filter::kNearest, {0,   255, 1, 0,   255, 1, 219, 255, 128, 182, 255, 0, 182, 255, 0,
                                    0,   255, 1, 0,   255, 1, 219, 255, 128, 182, 255, 0, 182, 255, 0,
                                    197, 255, 1, 197, 255, 1, 163, 255, 128, 129, 255, 0, 129, 255, 0,
                                    197, 255, 1, 197, 255, 1, 163, 255, 128, 129, 255, 0, 129, 255, 0}},
    {3, 2, 5, 4, Filter::kBilinear, {0,   255, 1, 88,  255, 52, 219, 255, 128, 197, 255, 51, 182, 255, 0,
                                     49,  255, 1, 112, 255, 52, 205, 255, 128, 184, 255, 51, 169, 255, 0,
                                     148, 255, 1, 159, 255, 52, 177, 255, 128, 157, 255, 51, 142, 255, 0,
                                     197, 255, 1, 183, 255, 52, 163, 255, 128, 143, 255, 51, 129, 255, 0}},
    {3, 2, 5, 4, Filter::kBicubic, {0,   255, 0, 68,  255, 51, 224, 255, 128, 211, 255, 51, 184, 255, 0,
                                    41,  255, 0, 101, 255, 51, 207, 255, 128, 191, 255, 51, 168, 255, 0,
                                    159, 255, 0, 164, 255, 51, 175, 255, 128, 153, 255, 51, 137, 255, 0,
                                    218, 255, 0, 197, 255, 51, 158, 255, 128, 133, 255, 51, 121, 255, 0}},
    {7, 5, 7, 3, Filter::kNearest, {0,   255, 1,   219, 255, 43,  182, 255, 86,  145, 255, 128, 108, 255, 171, 71,
                                    0,   213, 34,  0,   0,   138, 255, 1,   107, 255, 43,  76,  255, 86,  45,  255,
                                    128, 14,  255, 171, 239, 0,   213, 208, 0,   0,   20,  0,   1,   251, 0,   43,
                                    226, 0,   86,  201, 0,   128, 176, 0,   171, 100, 255, 213, 75,  255, 0}},
    {7, 5, 7, 3, Filter::kBilinear, {84,  255, 1,   195, 255, 43,  159, 255, 86,  124, 255, 128, 88,  255, 171, 52,
                                     0,   213, 126, 0,   0,   138, 198, 1,   107, 198, 43,  76,  198, 86,  102, 198,
                                     128, 71,  198, 171, 182, 57,  213, 197, 57,  0,   45,  0,   1,   165, 0,   43,
                                     139, 0,   86,  222, 0,   128, 196, 0,   171, 141, 255, 213, 93,  255, 0}},
    {7, 5, 7, 3, Filter::kBicubic, {85,  255, 1,   199, 255, 43,  163, 255, 86,  119, 255, 128, 83,  255, 171, 48,
                                    0,   213, 127, 0,   0,   148, 202, 1,   97,  202, 43,  66,  202, 86,  99,  202,
                                    128, 68,  202, 171, 187, 53,  213, 207, 53,  0,   41,  0,   1,   164, 0,   43,
                                    138, 0,   86,  227, 0,   128, 201, 0,   171, 145, 255, 213, 88,  255, 0}},
};

TEST(Resize, GivesTheBytesOfPillow) {
  for (const Golden& golden : kGoldens) {
    const Image resized =
        resize(patterned(golden.from_width, golden.from_height), golden.width, golden.height, golden.filter);
    EXPECT_EQ(resized.size(), (ImageSize{golden.width, golden.height}));
    EXPECT_EQ(resized.rgb, golden.rgb) << golden.from_width << " x " << golden.from_height << ", filter "
                                       << static_cast<int>(golden.filter);
  }
}

TEST(Resize, KeepsAPictureOfThatSize) {
  const Image image = patterned(9, 4);
  for (const Filter filter : {Filter::kNearest, Filter::kBilinear, Filter::kBicubic}) {
    EXPECT_EQ(resize(image, 9, 4, filter), image);
  }
}

TEST(Resize, KeepsAColourAtAnySize) {
  Image image{.width = 13, .height = 11, .rgb = std::vector<std::uint8_t>(3 * 13 * 11, 201)};
  for (const Filter filter : {Filter::kNearest, Filter::kBilinear, Filter::kBicubic}) {
    for (const ImageSize size : {ImageSize{1, 1}, ImageSize{5, 40}, ImageSize{300, 2}}) {
      EXPECT_THAT(resize(image, size.width, size.height, filter).rgb, Each(201));
    }
  }
}

TEST(Resize, IsTwoPassesWithBytesBetweenThem) {
  const Image image = patterned(40, 50);
  for (const Filter filter : {Filter::kBilinear, Filter::kBicubic}) {
    const Image rows_first = resize(resize(image, 17, 50, filter), 17, 31, filter);
    const Image columns_first = resize(resize(image, 40, 31, filter), 17, 31, filter);
    ASSERT_NE(rows_first, columns_first);
    EXPECT_EQ(resize(image, 17, 31, filter), rows_first);  // 2 (40 - 17) >= 50 - 31
    EXPECT_EQ(resize(image, 60, 90, filter), resize(resize(image, 60, 50, filter), 60, 90, filter));
  }
}

TEST(Resize, BeginsWithColumnsWhereTheHeightShrinksMuchMore) {
  const Image image = patterned(40, 50);
  for (const Filter filter : {Filter::kBilinear, Filter::kBicubic}) {
    for (const ImageSize size : {ImageSize{31, 31}, ImageSize{60, 49}}) {  // 2 * 9 < 19; -40 < 1
      EXPECT_EQ(resize(image, size.width, size.height, filter),
                resize(resize(image, 40, size.height, filter), size.width, size.height, filter));
    }
    EXPECT_EQ(resize(image, 30, 30, filter), resize(resize(image, 30, 50, filter), 30, 30, filter));  // 20 = 20
  }
}

TEST(Resize, ReadsOnlyTheRowsOfTheResult) {
  const Image image = patterned(3000, 500);
  EXPECT_EQ(resize(image, 17, 1, Filter::kBicubic),
            resize(resize(image, 17, 500, Filter::kBicubic), 17, 1, Filter::kBicubic));
}

TEST(Resize, RefusesSizesThatNoPictureHas) {
  const Image image = patterned(2, 2);
  EXPECT_EQ(message_of<ConfigError>([&] { resize(image, 0, 5, Filter::kBicubic); }),
            "a picture cannot be resized to 0 x 5 pixels; both sides must be at least 1, and the product at most "
            "178956970");
  EXPECT_THROW(resize(image, 20000, 10000, Filter::kNearest), ConfigError);
  EXPECT_THROW(resize(image, std::int64_t{1} << 40, std::int64_t{1} << 40, Filter::kNearest), ConfigError);
}

TEST(Resize, RefusesBytesThatDoNotFitTheSize) {
  Image image = patterned(4, 4);
  image.rgb.pop_back();
  EXPECT_THROW(resize(image, 2, 2, Filter::kBicubic), InvariantError);
}

TEST(Crop, CopiesARectangle) {
  const Image image = patterned(6, 5);
  const Image part = crop(image, 2, 1, {3, 4});
  ASSERT_EQ(part.size(), (ImageSize{3, 4}));
  for (std::int64_t y = 0; y < 4; ++y) {
    for (std::int64_t i = 0; i < 9; ++i) EXPECT_EQ(part.row(y)[i], image.row(y + 1)[6 + i]);
  }
  EXPECT_THROW(crop(image, 4, 0, {3, 1}), InvariantError);
  EXPECT_THROW(crop(image, 0, -1, {1, 1}), InvariantError);
}

TEST(PadToSquare, PutsThePictureInTheMiddle) {
  const Image wide = pad_to_square(patterned(5, 2), {7, 8, 9});
  ASSERT_EQ(wide.size(), (ImageSize{5, 5}));
  EXPECT_EQ(crop(wide, 0, 1, {5, 2}), patterned(5, 2));  // (5 - 2) / 2 rows above
  EXPECT_EQ(crop(wide, 4, 0, {1, 1}).rgb, (std::vector<std::uint8_t>{7, 8, 9}));
  EXPECT_EQ(crop(wide, 0, 4, {1, 1}).rgb, (std::vector<std::uint8_t>{7, 8, 9}));

  const Image high = pad_to_square(patterned(2, 5), {7, 8, 9});
  EXPECT_EQ(crop(high, 1, 0, {2, 5}), patterned(2, 5));
  EXPECT_EQ(pad_to_square(patterned(3, 3), {7, 8, 9}), patterned(3, 3));
}

}  // namespace
}  // namespace loom::images
