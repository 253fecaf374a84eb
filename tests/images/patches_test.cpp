// Promise: sizes, grids, tokens and the order of patches are those of Qwen2-VL's processor.
// World:   goldens of the formulas, and pictures whose bytes count.
#include "engine/images/patches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/images/pictures.h"
#include "tests/support/files.h"

namespace loom::images {
namespace {

using test::message_of;
using ::testing::ElementsAre;

struct Sizes {
  ImageSize from;
  ImageSize to;
};

TEST(SmartResize, RoundsToMultiplesWithinTheLimits) {
  const Sizes goldens[] = {{{640, 480}, {644, 476}},    {{98, 70}, {112, 56}},  // 3.5 becomes 4, 2.5 becomes 2
                           {{42, 42}, {56, 56}},        {{30, 30}, {56, 56}},       {{1500, 1000}, {1204, 812}},
                           {{4000, 3000}, {1148, 840}}, {{2000, 100}, {1988, 112}}, {{280, 14}, {252, 28}},
                           {{1920, 1080}, {1316, 728}}};
  for (const auto& [from, to] : goldens) {
    EXPECT_EQ(smart_resize(from, {}), to) << from.width << " x " << from.height;
  }
}

TEST(SmartResize, HasTheLimitOfTheReleasedModels) {
  const PatchOptions options{.max_pixels = 12845056};
  EXPECT_EQ(smart_resize({1500, 1000}, options), (ImageSize{1512, 1008}));
  EXPECT_EQ(smart_resize({4000, 3000}, options), (ImageSize{4004, 2996}));
  EXPECT_EQ(smart_resize({1920, 1080}, options), (ImageSize{1932, 1092}));
}

TEST(SmartResize, GivesMultiplesWithinTheLimitsForAllSizes) {
  const PatchOptions options{.min_pixels = 4 * 28 * 28, .max_pixels = 40 * 28 * 28};
  for (std::int64_t width = 1; width < 900; width += 7) {
    for (std::int64_t height = (width + 199) / 200; height < 900 && height <= 200 * width; height += 11) {
      const ImageSize size = smart_resize({width, height}, options);
      ASSERT_EQ(size.width % 28 + size.height % 28, 0) << width << " x " << height;
      ASSERT_GE(size.width * size.height, options.min_pixels) << width << " x " << height;
      // A side that would be shorter than 28 is 28.
      if (size.width > 28 && size.height > 28) {
        ASSERT_LE(size.width * size.height, options.max_pixels) << width << " x " << height;
      }
    }
  }
}

TEST(SmartResize, RefusesARatioAbove200) {
  EXPECT_NO_THROW(smart_resize({2000, 10}, {}));
  EXPECT_EQ(message_of<ConfigError>([] {
              smart_resize({2010, 10}, {});
            }),
            "a picture of 2010 x 10 pixels; the longer side may be 200 times the shorter, crop the picture or leave it "
            "out");
  EXPECT_THROW(smart_resize({10, 2010}, {}), ConfigError);
  EXPECT_THROW(smart_resize({0, 10}, {}), ConfigError);
}

TEST(SmartResize, RefusesASideOfZero) {
  EXPECT_EQ(message_of<ConfigError>([] {
              smart_resize({100, 10}, {.min_pixels = 0});
            }),
            "a picture of 100 x 10 pixels would be resized to 112 x 0; raise min_pixels, which is 0, to 784 or more");
}

TEST(SmartResize, RefusesOptionsThatMakeNoPatches) {
  EXPECT_THROW(smart_resize({100, 100}, {.patch_size = 0}), ConfigError);
  EXPECT_THROW(smart_resize({100, 100}, {.merge_size = -1}), ConfigError);
  EXPECT_THROW(smart_resize({100, 100}, {.temporal_patch_size = std::int64_t{1} << 40}), ConfigError);
  EXPECT_EQ(message_of<ConfigError>([] {
              smart_resize({100, 100}, {.min_pixels = 20, .max_pixels = 10});
            }),
            "pictures: min_pixels is 20 and max_pixels 10; use 0 <= min_pixels <= max_pixels <= 178956970");
}

TEST(Grids, CountPatchesAndTokens) {
  const Grid grid = grid_of({640, 480}, {});
  EXPECT_EQ(grid, (Grid{1, 34, 46}));
  EXPECT_EQ(tokens_of(grid, 2), 34 * 46 / 4);
  EXPECT_EQ(grid_of({640, 480}, {.patch_size = 16}), (Grid{1, 30, 40}));
  EXPECT_EQ(tokens_of({3, 4, 6}, 2), 18);
}

// A picture of 56 x 56 whose value at (channel, y, x) is 3136 c + 56 y + x cannot be bytes, so three pictures give its
// digits in base 25.
std::vector<float> flat_indices(const PatchOptions& options, std::size_t& columns) {
  std::vector<float> sum;
  for (const int unit : {1, 25, 625}) {
    Image image{.width = 56, .height = 56, .rgb = std::vector<std::uint8_t>(3 * 3136)};
    for (int i = 0; i < 3 * 3136; ++i) {
      const int pixel = i % 3136;
      image.rgb[static_cast<std::size_t>(3 * pixel + i / 3136)] = static_cast<std::uint8_t>(i / unit % 25);
    }
    const Patches patches = patches_of(image, options);
    EXPECT_EQ(patches.grid, (Grid{1, 4, 4}));
    sum.resize(patches.values.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(unit) * patches.values[i] * 255;
  }
  columns = sum.size() / 16;
  return sum;
}

std::vector<int> rounded(const std::vector<float>& values) {
  std::vector<int> all;
  for (const float value : values) all.push_back(static_cast<int>(value + 0.5F));
  return all;
}

TEST(Patches, LieInMergeBlocksAndAsChannelTimeRowColumn) {
  std::size_t columns = 0;
  const auto values = rounded(flat_indices({.mean = {0, 0, 0}, .std = {1, 1, 1}}, columns));
  ASSERT_EQ(columns, 1176U);
  std::vector<int> first_column;
  for (std::size_t row = 0; row < 16; ++row) first_column.push_back(values[row * columns]);
  EXPECT_THAT(first_column,
              ElementsAre(0, 14, 784, 798, 28, 42, 812, 826, 1568, 1582, 2352, 2366, 1596, 1610, 2380, 2394));
  EXPECT_EQ(values[1], 1);
  EXPECT_EQ(values[14], 56);
  EXPECT_EQ(values[196], 0);  // the same pixel at the second time
  EXPECT_EQ(values[392], 3136);
}

TEST(Patches, AreNormalisedAsNumpyDoes) {
  Image image{.width = 56, .height = 56, .rgb = std::vector<std::uint8_t>(3 * 3136, 128)};
  image.rgb[1] = 255;
  const Patches patches = patches_of(image, {});
  EXPECT_FLOAT_EQ(patches.values[0], (128 / 255.0F - 0.48145466F) / 0.26862954F);
  EXPECT_FLOAT_EQ(patches.values[392], (1 - 0.4578275F) / 0.26130258F);
  EXPECT_FLOAT_EQ(patches.values[784], (128 / 255.0F - 0.40821073F) / 0.27577711F);
}

TEST(Patches, AreThoseOfTheResizedPicture) {
  const Image image = patterned(61, 45);
  for (const Filter filter : {Filter::kNearest, Filter::kBicubic}) {
    const PatchOptions options{.filter = filter};
    EXPECT_EQ(patches_of(image, options).values, patches_of(resize(image, 56, 56, filter), options).values);
  }
}

TEST(Patches, RefuseADeviationOfZero) {
  EXPECT_EQ(message_of<ConfigError>([] {
              patches_of(patterned(56, 56), {.std = {1, 0, 1}});
            }),
            "pictures: mean 0.4578275 and std 0 of green; both must be finite and std above 0");
}

// The values of a video at (t, time) are those of the frame 2 t + time alone.
void expect_frame(const Patches& video, std::int64_t t, std::int64_t time, const Image& frame) {
  const Patches alone = patches_of(frame, {});
  const std::int64_t rows = alone.grid.h * alone.grid.w;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < 3; ++c) {
      for (std::int64_t i = 0; i < 196; ++i) {
        const auto at = static_cast<std::size_t>((t * rows + row) * 1176 + c * 392 + time * 196 + i);
        ASSERT_EQ(video.values[at], alone.values[static_cast<std::size_t>(row * 1176 + c * 392 + i)]);
      }
    }
  }
}

TEST(VideoPatches, RepeatTheLastFrameOfAnOddNumber) {
  const std::vector<Image> frames{patterned(56, 84, 1), patterned(56, 84, 2), patterned(56, 84, 3)};
  const Patches video = patches_of_video(frames, {});
  ASSERT_EQ(video.grid, (Grid{2, 6, 4}));
  ASSERT_EQ(video.values.size(), 2U * 24 * 1176);
  expect_frame(video, 0, 0, frames[0]);
  expect_frame(video, 0, 1, frames[1]);
  expect_frame(video, 1, 0, frames[2]);
  expect_frame(video, 1, 1, frames[2]);
}

TEST(VideoPatches, HaveTheSizeOfTheFirstFrame) {
  const std::vector<Image> frames{patterned(56, 84), patterned(61, 200)};
  const Patches video = patches_of_video(frames, {});
  EXPECT_EQ(video.grid, (Grid{1, 6, 4}));
  expect_frame(video, 0, 1, resize(frames[1], 56, 84, Filter::kBicubic));
}

TEST(VideoPatches, OfOneFrameAreThoseOfAPicture) {
  const std::vector<Image> frames{patterned(60, 60)};
  EXPECT_EQ(patches_of_video(frames, {}).values, patches_of(frames[0], {}).values);
  EXPECT_EQ(message_of<ConfigError>([] { patches_of_video({}, {}); }), "a video without frames; give at least one");
}

}  // namespace
}  // namespace loom::images
