// Promise: tiles are those of InternVL: their grid, order, thumbnail, values and tokens.
// World:   goldens of the rule, patterned pictures.
#include "engine/images/tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/images/pictures.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::message_of;
using ::testing::ElementsAre;

struct Golden {
  ImageSize size;
  std::array<std::int64_t, 2> of_12;
  std::array<std::int64_t, 2> of_6;
};

TEST(TileGrid, HasTheNearestRatio) {
  const Golden goldens[] = {{{448, 448}, {1, 1}, {1, 1}},   {{800, 600}, {4, 3}, {3, 2}},
                            {{1920, 1080}, {4, 2}, {2, 1}}, {{1024, 1024}, {3, 3}, {2, 2}},
                            {{640, 480}, {4, 3}, {3, 2}},   {{300, 1200}, {1, 4}, {1, 4}},
                            {{896, 896}, {2, 2}, {2, 2}}};
  for (const Golden& golden : goldens) {
    EXPECT_EQ(tile_grid(golden.size, {}), golden.of_12) << golden.size.width << " x " << golden.size.height;
    EXPECT_EQ(tile_grid(golden.size, {.max_tiles = 6}), golden.of_6)
        << golden.size.width << " x " << golden.size.height;
  }
}

TEST(TileGrid, HasAtLeastTheLeastTiles) {
  EXPECT_EQ(tile_grid({448, 448}, {.min_tiles = 2}), (std::array<std::int64_t, 2>{2, 2}));
  EXPECT_EQ(tile_grid({448, 448}, {.min_tiles = 2, .max_tiles = 3}), (std::array<std::int64_t, 2>{1, 2}));
}

TEST(TileGrid, OfOneTileIsOneTile) {
  EXPECT_EQ(tile_grid({4000, 100}, {.max_tiles = 1}), (std::array<std::int64_t, 2>{1, 1}));
  EXPECT_EQ(tile_count({4000, 100}, {.max_tiles = 1}), 1);
}

TEST(Tiles, AreCutRowByRowWithAThumbnailOfTheWhole) {
  const Image image = patterned(90, 64);
  const TileOptions options{.image_size = 28, .max_tiles = 6};
  ASSERT_EQ(tile_grid(image.size(), options), (std::array<std::int64_t, 2>{3, 2}));
  const auto tiles = tiles_of(image, options);
  ASSERT_EQ(tiles.size(), 7U);
  EXPECT_EQ(tile_count(image.size(), options), 7);
  const Image resized = resize(image, 84, 56, Filter::kBicubic);
  EXPECT_EQ(tiles[1], crop(resized, 28, 0, {28, 28}));
  EXPECT_EQ(tiles[3], crop(resized, 0, 28, {28, 28}));
  EXPECT_EQ(tiles[6], resize(image, 28, 28, Filter::kBicubic));
}

TEST(Tiles, HaveAThumbnailOnlyBesideOthers) {
  EXPECT_EQ(tiles_of(patterned(30, 30), {.image_size = 28}).size(), 1U);
  EXPECT_EQ(tiles_of(patterned(90, 64), {.image_size = 28, .max_tiles = 6, .use_thumbnail = false}).size(), 6U);
}

TEST(TileValues, AreChannelsOfNormalisedRows) {
  const std::vector<Image> tiles{patterned(2, 2, 1), patterned(2, 2, 2)};
  const auto values = tile_values(tiles, kImageNetMean, kImageNetStd);
  ASSERT_EQ(values.size(), 2U * 3 * 4);
  for (std::size_t tile = 0; tile < 2; ++tile) {
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t i = 0; i < 4; ++i) {
        const float byte = tiles[tile].rgb[3 * i + c];
        EXPECT_FLOAT_EQ(values[tile * 12 + c * 4 + i], (byte / 255 - kImageNetMean[c]) / kImageNetStd[c]);
      }
    }
  }
}

TEST(TileTokens, AreTheShuffledPatches) {
  EXPECT_EQ(tile_tokens(448, 14, 0.5), 256);
  EXPECT_EQ(tile_tokens(224, 14, 0.5), 64);
  EXPECT_EQ(tile_tokens(448, 14, 1), 1024);
  EXPECT_EQ(
      message_of<ConfigError>([] { tile_tokens(42, 14, 0.5); }),
      "pictures: image_size 42, patch_size 14 and down_sample_ratio 0.5 make 1.5 tokens a side; use sizes that make "
      "a whole number");
  EXPECT_THROW(tile_tokens(448, 14, 0), ConfigError);
}

TEST(PadColor, IsTheMean) { EXPECT_THAT(pad_color(kImageNetMean), ElementsAre(123, 116, 103)); }

TEST(Tiles, RefuseOptionsThatMakeNone) {
  EXPECT_EQ(message_of<ConfigError>([] {
              tile_grid({10, 10}, {.min_tiles = 3, .max_tiles = 2});
            }),
            "pictures: 3 to 2 tiles; use 1 <= least <= most <= 1024");
  EXPECT_THROW(tile_grid({10, 10}, {.image_size = 0}), ConfigError);
  EXPECT_THROW(tile_grid({10, 10}, {.max_tiles = 1 << 30}), ConfigError);
  EXPECT_THROW(tile_grid({10, 0}, {}), ConfigError);
  EXPECT_THROW(tile_values(std::vector<Image>{patterned(2, 2), patterned(2, 3)}, kClipMean, kClipStd), InvariantError);
}

}  // namespace
}  // namespace loom::images
